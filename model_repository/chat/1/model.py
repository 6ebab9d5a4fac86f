"""Triton's entry to `chat`: everything is in the bridge."""

from python_backend.bridge.generate import GenerateModel as TritonPythonModel

__all__ = ["TritonPythonModel"]
