"""Triton's entry to `image_classifier`: everything is in the bridge."""

from python_backend.bridge.batch import BatchModel as TritonPythonModel

__all__ = ["TritonPythonModel"]
