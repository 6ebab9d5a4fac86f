"""Weights from the type a file has to the type a worker computes with, by numpy, which has neither bf16 nor fp8.

What conversion a tensor gets is decided in `layout`; here are the bits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

INT8_MAX = 127.0
FLOAT8_MAX = 448.0
"""Of e4m3fn: 0b0_1111_110."""

Floats = NDArray[np.float32]


def to_float32(raw: memoryview, stored: str) -> Floats:
    """`stored`: safetensors' name of a floating type. Exact but for F64, which is rounded."""
    match stored:
        case "F32":
            return np.frombuffer(raw, "<f4")
        case "F16":
            return np.frombuffer(raw, "<f2").astype(np.float32)
        case "BF16":
            return np.left_shift(np.frombuffer(raw, "<u2"), 16, dtype=np.uint32).view(np.float32)
        case "F64":
            with np.errstate(over="ignore"):
                return np.frombuffer(raw, "<f8").astype(np.float32)
    raise ValueError(f"{stored!r} is no floating type")


def to_bfloat16(values: Floats) -> NDArray[np.uint16]:
    """The bits; to nearest, ties to even, as torch does it."""
    bits = values.view(np.uint32)
    with np.errstate(over="ignore"):
        rounded = (bits + (np.uint32(0x7FFF) + ((bits >> 16) & 1))) >> 16
    return np.where(np.isnan(values), np.uint32(0x7FC0), rounded).astype(np.uint16)


def to_int8_rows(rows: Floats) -> tuple[NDArray[np.int8], Floats]:
    """Symmetric, one scale a row: `rows` [n, m] is about q * scale[:, None]. An empty or zero row has scale 1."""
    scale = _row_scale(rows, INT8_MAX)
    quantized = np.rint(rows / scale[:, None])
    return np.clip(quantized, -INT8_MAX, INT8_MAX).astype(np.int8), scale


def to_float8_rows(rows: Floats) -> tuple[NDArray[np.uint8], Floats]:
    """As `to_int8_rows`, with the bits of e4m3fn instead."""
    scale = _row_scale(rows, FLOAT8_MAX)
    return to_float8(rows / scale[:, None]), scale


def to_float8(values: Floats) -> NDArray[np.uint8]:
    """The bits of e4m3fn; to nearest, ties to even, what is larger than 448 becomes 448. `values` are finite."""
    magnitude = np.minimum(np.abs(values), np.float32(FLOAT8_MAX))
    bits = magnitude.view(np.uint32)
    # 20 of float32's 23 mantissa bits go, and the exponent's bias falls from 127 to 7.
    normal = ((bits + (np.uint32(0x7FFFF) + ((bits >> 20) & 1))) >> 20) - np.uint32((127 - 7) << 3)
    # Below 2**-6 steps are 2**-9 wide, as float32's are above 2**14: adding that rounds.
    subnormal = (magnitude + np.float32(2.0**14)).view(np.uint32) - np.float32(2.0**14).view(np.uint32)
    sign = (values.view(np.uint32) >> 24) & 0x80
    return np.bitwise_or(np.where(magnitude < 2.0**-6, subnormal, normal), sign).astype(np.uint8)


def _row_scale(rows: Floats, largest: float) -> Floats:
    scale = np.max(np.abs(rows), axis=1, initial=0.0) / np.float32(largest)
    # A row of the smallest subnormals has a scale that rounds to zero, too.
    return np.where(scale > 0, scale, np.float32(1.0)).astype(np.float32)
