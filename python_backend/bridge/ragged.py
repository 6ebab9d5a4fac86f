"""What config.pbtxt says about a batch model's tensors, and padding and cutting by it. numpy only, no Triton.

Dimensions are counted with the batch as dimension 0.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from python_backend.bridge.errors import AttachFailed, InvalidRequest
from python_backend.buckets import Shape, padded_shape, split
from python_backend.messages import TensorData

Array = np.ndarray[Any, Any]

LENGTHS_NAME = "lengths"
"""The tensor that tells a module how much of each row is not padding: int64 [rows], or [rows, dims] where an input
has several ragged dimensions. Given to modules whose forward takes it."""
SPLIT_SHARE = 0.25
"""A further forward is worth it when it saves more than this share of a batch's own elements."""
_FOLLOW = re.compile(r"\s*([^:,\s]+)\s*:\s*(\d+)\s*(?:=\s*(\d+)\s*)?")


@dataclass(frozen=True)
class TensorShapes:
    """A batch model's tensors. `ragged`: input -> its dimensions that may differ between requests."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    ragged: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    follows: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """Output -> its dimension -> which ragged dimension (of the first ragged input) it is cut back to."""
    pad_value: float = 0.0
    pad_to_multiple: int = 1

    @classmethod
    def of(cls, model_config: str) -> TensorShapes:
        """From the JSON that Triton gives to `initialize`. Raises AttachFailed with what is wrong."""
        config = json.loads(model_config)
        parameters = {key: value["string_value"] for key, value in config.get("parameters", {}).items()}
        if not int(config.get("max_batch_size", 0)):
            raise AttachFailed("max_batch_size = 0, a batch model needs at least 1")
        inputs, outputs = config["input"], config["output"]
        for tensor in (*inputs, *outputs):
            if tensor["data_type"] in ("TYPE_STRING", "TYPE_BF16"):
                raise AttachFailed(
                    f"{tensor['name']} is {tensor['data_type']}; batch models have numpy's numbers only"
                )
        names = tuple(tensor["name"] for tensor in outputs)
        return cls(
            inputs=tuple(tensor["name"] for tensor in inputs),
            outputs=names,
            ragged={t["name"]: _ragged_dims(t) for t in inputs if t.get("allow_ragged_batch")},
            follows=_read_follows(parameters.get("ragged_outputs", ""), names),
            pad_value=_number("pad_value", parameters.get("pad_value", "0"), -math.inf),
            pad_to_multiple=int(_number("pad_to_multiple", parameters.get("pad_to_multiple", "8"), 1)),
        )

    @property
    def leading_ragged(self) -> str | None:
        """The first ragged input: `lengths` and the outputs' cuts are by it."""
        return next((name for name in self.inputs if name in self.ragged), None)


@dataclass(frozen=True)
class Rows:
    """One request's inputs, all with the same first dimension."""

    tensors: Mapping[str, Array]
    num_rows: int
    size: Shape = ()
    """Of the leading ragged input's ragged dimensions."""


def read_rows(shapes: TensorShapes, tensors: Mapping[str, Array]) -> Rows:
    """Raises InvalidRequest. Triton has checked names, types, and ranks, and dimensions that are not ragged."""
    for name, array in tensors.items():
        if array.dtype.kind not in "biuf":
            raise InvalidRequest(f"{name} is {array.dtype}, only numbers are served")
    sizes = {name: array.shape[0] for name, array in tensors.items()}
    if len(set(sizes.values())) != 1:
        raise InvalidRequest(f"inputs have different batch sizes: {sizes}")
    num_rows = next(iter(sizes.values()))
    if num_rows == 0:
        raise InvalidRequest("the batch is empty: shape has a 0, at least one row is needed")
    leading = shapes.leading_ragged
    if leading is None or leading not in tensors:
        return Rows(tensors, num_rows)
    shape = tensors[leading].shape
    return Rows(tensors, num_rows, tuple(shape[dim] for dim in shapes.ragged[leading]))


def buckets_of(shapes: TensorShapes, requests: Sequence[Rows]) -> list[list[int]]:
    """Which requests go into one forward together: indices by bucket."""
    groups: dict[frozenset[str], list[int]] = {}
    for index, rows in enumerate(requests):  # optional inputs: those that have the same ones
        groups.setdefault(frozenset(rows.tensors), []).append(index)
    buckets = []
    for indices in groups.values():
        sizes = [padded_shape([requests[index].size], shapes.pad_to_multiple) for index in indices]
        counts = [requests[index].num_rows for index in indices]
        own = sum(count * math.prod(size) for count, size in zip(counts, sizes, strict=True))
        buckets += [[indices[i] for i in part] for part in split(sizes, SPLIT_SHARE * own, counts)]
    return buckets


def pack(shapes: TensorShapes, requests: Sequence[Rows]) -> list[TensorData]:
    """One bucket's requests as one batch, padded; `lengths` beside it where anything is ragged."""
    packed = [_packed(shapes, name, requests) for name in requests[0].tensors]
    if requests[0].size:
        lengths = np.concatenate(
            [np.tile(np.array(rows.size, np.int64), (rows.num_rows, 1)) for rows in requests]
        )
        packed.append(to_data(LENGTHS_NAME, lengths[:, 0] if lengths.shape[1] == 1 else lengths))
    return packed


def cut(shapes: TensorShapes, made: Mapping[str, Array], first: int, rows: Rows) -> dict[str, Array]:
    """One request's part of a batch's outputs: its rows from `first` on, without what came of padding."""
    parts = {}
    for name, array in made.items():
        part = array[first : first + rows.num_rows]
        for dim, ragged in shapes.follows.get(name, {}).items():
            if dim < part.ndim and ragged < len(rows.size):
                part = part.take(range(min(rows.size[ragged], part.shape[dim])), axis=dim)
        parts[name] = np.ascontiguousarray(part)
    return parts


def to_data(name: str, array: Array) -> TensorData:
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    return TensorData(name, array.dtype.name, list(array.shape), array.tobytes())


def to_array(data: TensorData) -> Array:
    return np.frombuffer(data.data, dtype=np.dtype(data.dtype)).reshape(data.shape)


def _packed(shapes: TensorShapes, name: str, requests: Sequence[Rows]) -> TensorData:
    arrays = [rows.tensors[name] for rows in requests]
    dims = shapes.ragged.get(name, ())
    if not dims and len({array.shape[1:] for array in arrays}) == 1:
        return to_data(name, arrays[0] if len(arrays) == 1 else np.concatenate(arrays))
    if not dims:
        raise InvalidRequest(
            f"{name} has shapes {sorted({array.shape[1:] for array in arrays})} in one batch, and its config has no"
            " allow_ragged_batch"
        )
    target = list(arrays[0].shape[1:])
    sizes = padded_shape([tuple(a.shape[dim] for dim in dims) for a in arrays], shapes.pad_to_multiple)
    for dim, size in zip(dims, sizes, strict=True):
        target[dim - 1] = size
    num_rows = sum(array.shape[0] for array in arrays)
    padded = np.full((num_rows, *target), shapes.pad_value, dtype=arrays[0].dtype)
    first = 0
    for array in arrays:
        region = tuple(slice(0, size) for size in array.shape[1:])
        padded[(slice(first, first + array.shape[0]), *region)] = array
        first += array.shape[0]
    return to_data(name, padded)


def _ragged_dims(tensor: Mapping[str, Any]) -> tuple[int, ...]:
    dims = tuple(index + 1 for index, size in enumerate(tensor["dims"]) if int(size) == -1)
    if not dims:
        raise AttachFailed(f"{tensor['name']} has allow_ragged_batch but no dimension -1: {tensor['dims']}")
    return dims


def _read_follows(text: str, outputs: Sequence[str]) -> dict[str, dict[int, int]]:
    """ "scores:1, mask:1=0, mask:2=1": dimension 1 of scores is cut to ragged dimension 0, and so on."""
    follows: dict[str, dict[int, int]] = {}
    for part in filter(str.strip, text.split(",")):
        match = _FOLLOW.fullmatch(part)
        if match is None or match[1] not in outputs or int(match[2]) < 1:
            raise AttachFailed(
                f"ragged_outputs = {text!r}: {part.strip()!r} is not OUTPUT:DIMENSION or OUTPUT:DIMENSION=RAGGED"
                f" with an output of {', '.join(outputs)} and a dimension from 1 on"
            )
        follows.setdefault(match[1], {})[int(match[2])] = int(match[3] or 0)
    return follows


def _number(key: str, raw: str, least: float) -> float:
    try:
        value = float(raw)
    except ValueError:
        value = math.nan
    if not least <= value:
        raise AttachFailed(
            f"{key} = {raw!r}, must be a number" + (f" of at least {least}" if least > 0 else "")
        )
    return value
