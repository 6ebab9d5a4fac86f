"""Triton's entry to `embed`: everything is in the bridge."""

from python_backend.bridge.embed import EmbedModel as TritonPythonModel

__all__ = ["TritonPythonModel"]
