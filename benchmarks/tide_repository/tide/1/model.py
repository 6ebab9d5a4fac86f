"""Triton's entry to a batch model: everything is in the bridge."""

from python_backend.bridge.batch import BatchModel as TritonPythonModel

__all__ = ["TritonPythonModel"]
