"""Reading safetensors without torch: where each tensor lies in which file, checked before a byte is copied.

A folder holds `model.safetensors`, or shards listed by `model.safetensors.index.json`. A file is a u64 length, a
JSON header of that length (name -> dtype, shape, data_offsets), then the data.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import msgspec

from python_backend.node.errors import (
    CheckpointMalformed,
    CheckpointMissing,
    CheckpointTruncated,
    CheckpointUnreadable,
    TensorTypeUnknown,
)

SINGLE_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
CODE_NAMES = ("module.py", "model.pt2")
"""What `worker/modules.py` makes a batch model from."""
MAX_HEADER_BYTES = 100_000_000  # as the format's own reader

# safetensors' name -> (bytes in the file, torch's name after binding as fp32; `layout` has the other precisions).
TENSOR_TYPES = {
    "F64": (8, "float64"),
    "F32": (4, "float32"),
    "F16": (2, "float32"),
    "BF16": (2, "float32"),
    "I64": (8, "int64"),
    "I32": (4, "int32"),
    "I16": (2, "int16"),
    "I8": (1, "int8"),
    "U8": (1, "uint8"),
    "BOOL": (1, "bool"),
}


@dataclass(frozen=True)
class StoredTensor:
    """One tensor as a file holds it."""

    name: str
    file: Path
    file_offset_bytes: int
    num_bytes: int
    dtype: str
    """safetensors' name: "BF16"."""
    shape: tuple[int, ...]

    @property
    def bound_dtype(self) -> str:
        return TENSOR_TYPES[self.dtype][1]


@dataclass(frozen=True)
class Checkpoint:
    tensors: tuple[StoredTensor, ...]
    """In the order in which they lie in the files."""
    headers: dict[Path, bytes]
    """Each file's header: where a hash of its content begins."""


class _Entry(msgspec.Struct, frozen=True):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


class _Index(msgspec.Struct, frozen=True):
    weight_map: dict[str, str]


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read the headers only. Raises CheckpointError, a file that can't be read included.

    A folder of a batch model's code needs no weights: its code has, or makes, its own."""
    if has_own_weights(folder):
        return Checkpoint(tensors=(), headers={})
    tensors: dict[str, StoredTensor] = {}
    headers: dict[Path, bytes] = {}
    for file in weight_files(folder):
        header, data_start, data_bytes = _read_header(file)
        headers[file] = header
        for tensor in _parse_header(file, header, data_start, data_bytes):
            if tensor.name in tensors:
                raise CheckpointMalformed(
                    f"{file}: tensor {tensor.name!r} is also in {tensors[tensor.name].file}"
                )
            tensors[tensor.name] = tensor
    if not tensors:
        raise CheckpointMalformed(f"{folder}: holds no tensor")
    _check_index(folder, tensors)
    return Checkpoint(tensors=tuple(tensors.values()), headers=headers)


def has_own_weights(folder: Path) -> bool:
    is_code = any((folder / name).is_file() for name in CODE_NAMES)
    return is_code and not any((folder / name).is_file() for name in (SINGLE_NAME, INDEX_NAME))


def weight_files(folder: Path) -> list[Path]:
    """One file, or the shards in order of their names. Raises CheckpointError."""
    if (folder / SINGLE_NAME).is_file():
        return [folder / SINGLE_NAME]
    if not (folder / INDEX_NAME).is_file():
        raise CheckpointMissing(f"{folder}: neither {SINGLE_NAME} nor {INDEX_NAME} is there")
    names = sorted(set(_read_index(folder).weight_map.values()))
    for name in names:
        if Path(name).name != name:
            raise CheckpointMalformed(f"{folder / INDEX_NAME}: shard {name!r} lies outside the folder")
        if not (folder / name).is_file():
            raise CheckpointMissing(f"{folder}: shard {name} is listed in {INDEX_NAME} but not there")
    return [folder / name for name in names]


def _read_index(folder: Path) -> _Index:
    try:
        return msgspec.json.decode((folder / INDEX_NAME).read_bytes(), type=_Index)
    except msgspec.MsgspecError as exc:
        raise CheckpointMalformed(f"{folder / INDEX_NAME}: {exc}") from exc


def _check_index(folder: Path, tensors: dict[str, StoredTensor]) -> None:
    if (folder / SINGLE_NAME).is_file():
        return
    for name, shard in _read_index(folder).weight_map.items():
        if name not in tensors or tensors[name].file.name != shard:
            raise CheckpointMalformed(f"{folder / INDEX_NAME}: tensor {name!r} is not in {shard}")


def open_weights(file: Path) -> BinaryIO:
    """Unbuffered. Raises CheckpointUnreadable."""
    try:
        return cast("BinaryIO", file.open("rb", buffering=0))
    except OSError as exc:
        raise CheckpointUnreadable(f"{file}: {exc.strerror}; may this user read it?") from exc


def _read_header(file: Path) -> tuple[bytes, int, int]:
    """The header, where the data starts, and how many bytes of data there are."""
    with open_weights(file) as opened:
        file_bytes = os.fstat(opened.fileno()).st_size
        header_bytes = int.from_bytes(opened.read(8), "little")
        if file_bytes < 8 or header_bytes > file_bytes - 8:
            raise CheckpointTruncated(
                f"{file}: {file_bytes} bytes long, its header alone should have {header_bytes}"
            )
        if header_bytes > MAX_HEADER_BYTES:
            raise CheckpointMalformed(f"{file}: header of {header_bytes} bytes, at most {MAX_HEADER_BYTES}")
        header = opened.read(header_bytes)
    return header, 8 + header_bytes, file_bytes - 8 - header_bytes


def _parse_header(file: Path, header: bytes, data_start: int, data_bytes: int) -> list[StoredTensor]:
    try:
        raw = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        raw.pop("__metadata__", None)
        entries = {name: msgspec.json.decode(value, type=_Entry) for name, value in raw.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
        raise CheckpointMalformed(f"{file}: header: {exc}") from exc
    tensors, end_of_last, last, place_of_last = [], 0, "", (-1, -1)
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        begin, end = entry.data_offsets
        _check_entry(file, name, entry, data_bytes)
        is_same_place = (begin, end) == place_of_last  # tied weights: one tensor under two names
        if begin < end_of_last and begin < end and not is_same_place:
            raise CheckpointMalformed(f"{file}: tensor {name!r} starts at {begin} inside {last!r}")
        end_of_last, last, place_of_last = max(end, end_of_last), name, (begin, end)
        tensors.append(
            StoredTensor(name, file, data_start + begin, end - begin, entry.dtype, tuple(entry.shape))
        )
    return tensors


def _check_entry(file: Path, name: str, entry: _Entry, data_bytes: int) -> None:
    begin, end = entry.data_offsets
    if entry.dtype not in TENSOR_TYPES:
        raise TensorTypeUnknown(
            f"{file}: tensor {name!r} has type {entry.dtype!r}, known: {', '.join(TENSOR_TYPES)}"
        )
    if begin < 0 or end < begin or any(size < 0 for size in entry.shape):
        raise CheckpointMalformed(
            f"{file}: tensor {name!r} has shape {entry.shape} at bytes {begin} to {end}"
        )
    if end > data_bytes:
        raise CheckpointTruncated(
            f"{file}: tensor {name!r} ends at byte {end} of {data_bytes}: incomplete copy?"
        )
    expected = math.prod(entry.shape) * TENSOR_TYPES[entry.dtype][0]
    if end - begin != expected:
        raise CheckpointMalformed(
            f"{file}: tensor {name!r} of shape {entry.shape} {entry.dtype} takes {expected} bytes,"
            f" has {end - begin}"
        )
