"""A plan's tensor values as the bytes that KServe's `raw_input_contents` carries."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loadtest.call import Tensor

_NUMPY = {
    "BOOL": "?",
    "INT8": "i1",
    "INT16": "<i2",
    "INT32": "<i4",
    "INT64": "<i8",
    "UINT8": "u1",
    "UINT16": "<u2",
    "UINT32": "<u4",
    "UINT64": "<u8",
    "FP16": "<f2",
    "FP32": "<f4",
    "FP64": "<f8",
}


def raw_of(tensor: Tensor) -> bytes:
    """Raises ValueError for a datatype that is none of Triton's, or a count that is not the shape's."""
    if len(tensor.values) != (wanted := int(np.prod(tensor.shape))):
        raise ValueError(
            f"tensor {tensor.name}: {len(tensor.values)} values, shape {list(tensor.shape)} takes {wanted}"
        )
    if tensor.datatype == "BYTES":
        return b"".join(bytes_element(str(value)) for value in tensor.values)
    if tensor.datatype not in _NUMPY:
        raise ValueError(
            f"tensor {tensor.name}: datatype {tensor.datatype}, must be BYTES or one of {', '.join(_NUMPY)}"
        )
    values: Sequence[float | int | bool | str] = tensor.values
    return np.array(values, dtype=_NUMPY[tensor.datatype]).tobytes()


def bytes_element(value: str | bytes) -> bytes:
    """A BYTES element on the wire: its length, little-endian, then itself."""
    raw = value.encode() if isinstance(value, str) else value
    return len(raw).to_bytes(4, "little") + raw
