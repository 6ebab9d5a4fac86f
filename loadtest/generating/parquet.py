"""Rows of a run as one Parquet file: a column each, chunks as lists, the schema's version in its metadata."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from arro3.core import (
    Array,
    ChunkedArray,
    DataType,
    Field,
    Schema,
    Table,
    list_array,
    list_flatten,
    list_offsets,
)
from arro3.io import read_parquet, write_parquet

from loadtest.records import Requests

VERSION = "1"
_MAGIC = b"PAR1"
_VERSION_KEY = "tidegate.requests"
_INTS = ("index", "process", "turn", "status", "input_tokens", "output_tokens", "cached_tokens")
_WORDS = ("user", "service", "session", "error", "instance")
_FLOATS = ("t_intended_s", "t_sent_s", "t_first_s", "t_last_s")
_LISTS = {"chunk_times_s": DataType.float64(), "chunk_tokens": DataType.int64()}


class RequestsUnreadable(ValueError):
    """The file is none of ours, or of another version."""


def write_requests(path: Path, requests: Requests) -> None:
    """Whole or not at all. NaN stays NaN."""
    kinds = dict.fromkeys(_INTS, DataType.int64()) | dict.fromkeys(_WORDS, DataType.utf8())
    kinds |= dict.fromkeys(_FLOATS, DataType.float64())
    arrays = [_array(getattr(requests, name), kind) for name, kind in kinds.items()]
    offsets = _array(requests.chunk_offsets, DataType.int64())
    for name, kind in _LISTS.items():
        kinds[name] = DataType.large_list(Field("item", kind))
        arrays.append(list_array(offsets, _array(getattr(requests, name), kind), type=kinds[name]))
    schema = Schema([Field(name, kind) for name, kind in kinds.items()], metadata={_VERSION_KEY: VERSION})
    table = Table.from_arrays([ChunkedArray([array]) for array in arrays], schema=schema)
    aside = path.with_name(f".{path.name}.part")
    try:
        write_parquet(table, aside, compression="zstd(3)")
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def read_requests(path: Path) -> Requests:
    """What `write_requests` wrote. Raises RequestsUnreadable, and OSError when there is no such file."""
    with path.open("rb") as file:
        head = file.read(len(_MAGIC))
        file.seek(max(0, path.stat().st_size - len(_MAGIC)))
        # arro3 panics at these, past any `except Exception`.
        if {head, file.read()} != {_MAGIC}:
            raise RequestsUnreadable(
                f"{path}: no whole Parquet file; the run that wrote it was cut off, or it is another"
            )
    reader = read_parquet(path)
    found = reader.schema.metadata_str.get(_VERSION_KEY)
    if found != VERSION:
        raise RequestsUnreadable(
            f"{path}: {_VERSION_KEY} is {found or 'missing'}, must be {VERSION}; did `tidegate loadtest` write it?"
        )
    table = reader.read_all().combine_chunks()
    columns: dict[str, Any] = {name: _flat(table, name, np.int64) for name in _INTS}
    columns |= {name: _flat(table, name, np.float64) for name in _FLOATS}
    columns |= {name: np.array(table.column(name).to_pylist(), dtype=np.str_) for name in _WORDS}
    columns["chunk_offsets"] = _offsets(table.column("chunk_tokens"))
    for name, kind in (("chunk_times_s", np.float64), ("chunk_tokens", np.int64)):
        columns[name] = _joined(list_flatten(table.column(name)).read_all(), kind)
    return Requests(**columns)


def _array(values: npt.NDArray[Any], kind: DataType) -> Array:
    """numpy's texts are no Arrow type."""
    return Array(values.tolist(), kind) if values.dtype.kind == "U" else Array.from_numpy(values)


def _offsets(lists: ChunkedArray) -> npt.NDArray[np.int64]:
    """Of all chunks as one."""
    lengths = [np.diff(np.asarray(list_offsets(chunk))) for chunk in lists.chunks]
    offsets: npt.NDArray[np.int64] = np.concatenate([np.zeros(1, dtype=np.int64), *lengths]).cumsum()
    return offsets


def _flat(table: Table, name: str, kind: Any) -> Any:
    return _joined(table.column(name), kind)


def _joined(chunks: ChunkedArray, kind: Any) -> Any:
    parts = [np.asarray(chunk) for chunk in chunks.chunks]
    return np.concatenate(parts).astype(kind) if parts else np.empty(0, dtype=kind)
