"""What runs inside Triton's stub, one per instance. Imports numpy, msgspec and the standard library, never torch:
that is why an instance starts in about 150 ms.
"""
