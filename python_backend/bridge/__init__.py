"""What runs inside Triton's stub, one per instance. Imports numpy, msgspec and the standard library, never torch:
that is why an instance starts in about 150 ms. The only package that imports `triton_python_backend_utils`
(which exists only there, so nothing is imported here).

A generate request's way: `requests` (checked) -> `generate` (submitted, held) -> worker -> `responses`.
"""
