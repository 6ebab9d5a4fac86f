"""What runs inside Triton's stub, one per instance. Imports numpy, msgspec and the standard library, never torch:
that is why an instance starts in about 150 ms. The only package that imports `triton_python_backend_utils`.

A generate request's way: `requests` (checked) -> `generate` (submitted, held) -> worker -> `responses`.
"""

from python_backend.bridge.embed import EmbedModel
from python_backend.bridge.generate import GenerateModel

__all__ = ["EmbedModel", "GenerateModel"]
