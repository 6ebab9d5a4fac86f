"""Calls as a file: CSV, JSON lines or Parquet, with a page of them in memory at a time.

Parquet is written by arro3 (Rust, 34 MB, no dependencies) and not by pyarrow (170 MB), which by now needs NumPy 2:
the embedded Triton needs NumPy 1.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import msgspec

from ledger import schema
from ledger.call_query import CallFilter, pages
from ledger.calls import FIELDS
from ledger.errors import ExportFailed
from ledger.store import Store

if TYPE_CHECKING:
    from arro3.core import DataType, RecordBatch, Schema

Format = Literal["csv", "jsonl", "parquet"]
Pages = Iterable[list[tuple[Any, ...]]]


def export_file(store: Store, wanted: CallFilter, path: Path, file_format: Format) -> int:
    """How many calls are in the file. It appears whole or not at all, and only its owner may read it.

    Raises ExportFailed.
    """
    aside = path.with_name(f".{path.name}.part")
    try:
        with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            num_calls = export(store, wanted, file, file_format)
        aside.replace(path)
    except OSError as exc:
        raise ExportFailed(f"{path} can't be written: {exc.strerror}") from exc
    finally:
        aside.unlink(missing_ok=True)
    return num_calls


def export(store: Store, wanted: CallFilter, file: BinaryIO, file_format: Format) -> int:
    """How many calls were written, oldest first. Raises ExportFailed."""
    num_calls = 0

    def counted() -> Iterator[list[tuple[Any, ...]]]:
        nonlocal num_calls
        for page in pages(store, wanted):
            num_calls += len(page)
            yield page

    _WRITERS[file_format](counted(), file)
    return num_calls


def _write_csv(found: Pages, file: BinaryIO) -> None:
    text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
    writer = csv.writer(text)
    writer.writerow(FIELDS)
    for page in found:
        writer.writerows(page)
    text.detach()


def _write_jsonl(found: Pages, file: BinaryIO) -> None:
    encoder = msgspec.json.Encoder()
    for page in found:
        file.write(encoder.encode_lines([dict(zip(FIELDS, row, strict=True)) for row in page]))


def _write_parquet(found: Pages, file: BinaryIO) -> None:
    try:
        from arro3.core import Field, RecordBatchReader, Schema
        from arro3.io import write_parquet
    except ImportError as exc:
        raise ExportFailed(
            "Parquet needs arro3, which is not installed: pip install 'tidegate[parquet]', or export csv or jsonl"
        ) from exc
    types = {name: _arrow_type(name) for name in FIELDS}
    columns = Schema([Field(name, kind) for name, kind in types.items()])
    batches = (_batch(page, types, columns) for page in found)
    write_parquet(RecordBatchReader.from_batches(columns, batches), file, compression="zstd(3)")


def _batch(page: list[tuple[Any, ...]], types: dict[str, DataType], schema: Schema) -> RecordBatch:
    from arro3.core import Array, RecordBatch

    columns = zip(zip(*page, strict=True), types.values(), strict=True)
    arrays = [Array(column, kind) for column, kind in columns]
    return RecordBatch.from_arrays(arrays, schema=schema)


def _arrow_type(name: str) -> DataType:
    from arro3.core import DataType

    kind = schema.calls.c[name].type.python_type
    if kind is float:
        return DataType.float64()
    if kind is int:
        return DataType.int64()
    return DataType.bool() if kind is bool else DataType.utf8()


_WRITERS: dict[str, Callable[[Pages, BinaryIO], None]] = {
    "csv": _write_csv,
    "jsonl": _write_jsonl,
    "parquet": _write_parquet,
}
