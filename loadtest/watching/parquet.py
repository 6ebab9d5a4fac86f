"""A curve as one Parquet file: a row per series, times and values as lists; of the sources its metadata tells."""

from __future__ import annotations

from io import BytesIO
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
from arro3.core import Array, ChunkedArray, DataType, Table, list_array, list_flatten, list_offsets
from arro3.io import read_parquet, write_parquet

from loadtest.curve import Curve, Float, Series, Source

SOURCES_KEY = b"tidegate.sources"
COMPRESSION = "zstd(3)"
MAGIC = b"PAR1"
"""At both ends of a whole file. arro3 panics, past `except Exception`, where the last one is missing."""


class CurveUnreadable(ValueError):
    """The file is no curve of ours."""


def write_curve(path: Path, curve: Curve) -> None:
    """Raises OSError."""
    series = curve.series
    offsets = np.cumsum([0, *(len(each.t_s) for each in series)], dtype=np.int32)
    table = Table.from_pydict(
        {
            "name": _words([each.name for each in series]),
            "labels": _words([msgspec.json.encode(dict(each.labels)).decode() for each in series]),
            "unit": _words([each.unit for each in series]),
            "t_s": _lists([each.t_s for each in series], offsets),
            "value": _lists([each.values for each in series], offsets),
        }
    )
    sources = msgspec.json.encode(curve.sources).decode()
    with path.open("wb") as file:
        write_parquet(
            table, file, compression=COMPRESSION, key_value_metadata={SOURCES_KEY.decode(): sources}
        )


def read_curve(path: Path) -> Curve:
    """Raises CurveUnreadable, OSError."""
    data = path.read_bytes()
    if not (data.startswith(MAGIC) and data.endswith(MAGIC)):
        raise CurveUnreadable(f"{path} can't be read as a memory curve: it is no whole Parquet file")
    try:
        table = read_parquet(BytesIO(data)).read_all()
        sources = msgspec.json.decode(table.schema.metadata[SOURCES_KEY], type=tuple[Source, ...])
        rows = zip(
            table["name"].to_pylist(),
            table["labels"].to_pylist(),
            table["unit"].to_pylist(),
            _arrays(table["t_s"]),
            _arrays(table["value"]),
            strict=True,
        )
        series = tuple(
            Series(name, tuple(msgspec.json.decode(labels, type=dict[str, str]).items()), unit, t_s, values)
            for name, labels, unit, t_s, values in rows
        )
    except Exception as exc:  # arro3 raises a class of its own for each kind of broken file
        raise CurveUnreadable(f"{path} can't be read as a memory curve: {exc}") from exc
    return Curve(series, sources)


def _words(values: list[str]) -> Array:
    return Array(values, DataType.utf8())


def _lists(arrays: list[Float], offsets: np.ndarray) -> Array:  # type: ignore[type-arg]
    flat = np.concatenate([np.zeros(0), *arrays])
    return list_array(Array.from_numpy(offsets), Array.from_numpy(flat))


def _arrays(column: ChunkedArray) -> list[Float]:
    arrays: list[Float] = []
    for chunk in column.chunks:
        flat, offsets = list_flatten(chunk).to_numpy(), list_offsets(chunk).to_numpy()
        arrays += [flat[start:end].copy() for start, end in pairwise(offsets)]
    return arrays
