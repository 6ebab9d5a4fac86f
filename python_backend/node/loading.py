"""Streaming a folder's safetensors into memory that an arena has made: read, hash, convert, write, piece by piece.

An arena asks for a `LoadPlan` (how many bytes, which tensor where), allocates, and gives a `write` to `fill`. A
piece has CHUNK_BYTES or little more, so a load takes no memory to speak of beside its target.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from contracts.stack import Precision
from python_backend.node import convert
from python_backend.node.checkpoint import (
    TENSOR_TYPES,
    Checkpoint,
    StoredTensor,
    open_weights,
    read_checkpoint,
)
from python_backend.node.errors import CheckpointTruncated, PrecisionImpossible
from python_backend.node.fingerprint import FileStamps, Fingerprint, make_fingerprint, stamp_files
from python_backend.node.layout import FLOATING, Layout, Placed, lay_out

logger = logging.getLogger(__name__)

CHUNK_BYTES = 8 << 20

Write = Callable[[int, memoryview], None]
"""Put these bytes at this offset of the target."""
OnProgress = Callable[[int, int], None]
"""Bytes of the files done, of so many."""


@dataclass(frozen=True)
class LoadPlan:
    folder: Path
    precision: Precision
    checkpoint: Checkpoint
    layout: Layout
    stamps: FileStamps
    """Taken before the headers were read."""


def plan_load(folder: Path, precision: Precision) -> LoadPlan:
    """Reads headers, and the bytes of a head that may be a copy of the embeddings. Raises CheckpointError."""
    checkpoint = read_checkpoint(folder)
    stamps = stamp_files(list(checkpoint.headers))
    layout = lay_out(checkpoint, precision, find_copies(checkpoint))
    return LoadPlan(folder, precision, checkpoint, layout, stamps)


def fill(plan: LoadPlan, write: Write, on_progress: OnProgress) -> Fingerprint:
    """Read every tensor once, in the files' order. Raises CheckpointError."""
    hashes = {file: hashlib.sha256(header) for file, header in plan.checkpoint.headers.items()}
    total = sum(placed.tensor.num_bytes for placed in plan.layout.placed)
    done = 0
    opened: BinaryIO | None = None
    try:
        for placed in plan.layout.placed:
            tensor = placed.tensor
            if opened is None or opened.name != str(tensor.file):
                if opened is not None:
                    opened.close()
                opened = open_weights(tensor.file)
            for first_item, raw in _pieces(opened, tensor, _unit_items(placed)):
                hashes[tensor.file].update(raw)
                _write_piece(placed, first_item, raw, write)
                done += len(raw)
                on_progress(done, total)
    finally:
        if opened is not None:
            opened.close()
    file_hashes = {file.name: digest.hexdigest() for file, digest in hashes.items()}
    return make_fingerprint(plan.folder, plan.checkpoint, plan.precision, file_hashes)


def fingerprint_now(folder: Path, known: Fingerprint, stamps: FileStamps) -> Fingerprint:
    """Of what the folder holds now; its weights are read only if the files' stamps are others than `stamps`.

    Raises CheckpointError.
    """
    plan = plan_load(folder, known.precision)
    if plan.stamps == stamps:
        return make_fingerprint(folder, plan.checkpoint, known.precision, known.files)
    return fill(plan, lambda _offset, _data: None, log_progress(f"comparing weights {folder.name}"))


def find_copies(checkpoint: Checkpoint) -> dict[str, str]:
    """Output heads that are the input embeddings stored a second time: name -> name of the embeddings."""
    embeddings = [tensor for tensor in checkpoint.tensors if _is_embedding(tensor.name)]
    copies: dict[str, str] = {}
    for head in checkpoint.tensors:
        if head.name.rpartition(".weight")[0].rpartition(".")[2] not in ("lm_head", "embed_out"):
            continue
        for embedding in embeddings:
            is_alike = (head.shape, head.dtype) == (embedding.shape, embedding.dtype)
            is_elsewhere = (head.file, head.file_offset_bytes) != (
                embedding.file,
                embedding.file_offset_bytes,
            )
            if is_alike and is_elsewhere and _are_equal(head, embedding):
                copies[head.name] = embedding.name
                break
    return copies


def log_progress(what: str) -> OnProgress:
    """A line at most once a second, and one at the end. `tidegate up` reads them (tidegate/load_progress.py)."""
    started = last = time.monotonic()

    def log(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if done >= total:
            logger.info("%s: %d MiB in place after %.1f s", what, total >> 20, now - started)
        elif now - last >= 1:
            last = now
            logger.info("%s: %d of %d MiB (%d %%)", what, done >> 20, total >> 20, 100 * done // total)

    return log


def no_progress(_done: int, _total: int) -> None:
    """For those who don't look."""


def _write_piece(placed: Placed, first_item: int, raw: memoryview, write: Write) -> None:
    tensor = placed.tensor
    if placed.scale_offset_bytes is not None:
        _write_rows(placed, placed.scale_offset_bytes, first_item, raw, write)
    elif placed.dtype == "bfloat16" and tensor.dtype != "BF16":
        bits = convert.to_bfloat16(convert.to_float32(raw, tensor.dtype))
        write(placed.offset_bytes + 2 * first_item, bits.data.cast("B"))
    elif placed.dtype == "float32" and tensor.dtype in FLOATING - {"F32"}:
        widened = convert.to_float32(raw, tensor.dtype)
        write(placed.offset_bytes + 4 * first_item, widened.data.cast("B"))
    else:
        write(placed.offset_bytes + TENSOR_TYPES[tensor.dtype][0] * first_item, raw)


def _write_rows(
    placed: Placed, scale_offset_bytes: int, first_item: int, raw: memoryview, write: Write
) -> None:
    tensor = placed.tensor
    row_items = tensor.shape[1]
    rows = convert.to_float32(raw, tensor.dtype).reshape(-1, row_items)
    if not np.isfinite(rows).all():
        raise PrecisionImpossible(
            f"{tensor.file}: tensor {tensor.name!r} has values that are not finite, so it has no {placed.dtype}"
            " form; serve it with precision fp32 or bf16"
        )
    quantized, scale = convert.to_int8_rows(rows) if placed.dtype == "int8" else convert.to_float8_rows(rows)
    write(placed.offset_bytes + first_item, quantized.data.cast("B"))
    write(scale_offset_bytes + 4 * (first_item // row_items), scale.data.cast("B"))


def _unit_items(placed: Placed) -> int:
    """A piece is a multiple of so many items: whole rows where rows have scales."""
    return placed.tensor.shape[1] if placed.scale_offset_bytes is not None else 1


def _pieces(source: BinaryIO, tensor: StoredTensor, unit_items: int) -> Iterator[tuple[int, memoryview]]:
    """Index of the first item, and the bytes, which the next piece overwrites."""
    item_bytes = TENSOR_TYPES[tensor.dtype][0]
    unit_bytes = max(1, unit_items * item_bytes)
    piece_bytes = max(1, CHUNK_BYTES // unit_bytes) * unit_bytes
    buffer = memoryview(bytearray(min(piece_bytes, tensor.num_bytes)))
    source.seek(tensor.file_offset_bytes)
    for start in range(0, tensor.num_bytes, piece_bytes):
        piece = buffer[: min(piece_bytes, tensor.num_bytes - start)]
        _read_exactly(source, piece, tensor)
        yield start // item_bytes, piece


def _read_exactly(source: BinaryIO, target: memoryview, tensor: StoredTensor) -> None:
    done = 0
    while done < len(target):
        count = source.readinto(target[done:])  # type: ignore[attr-defined]
        if not count:
            raise CheckpointTruncated(f"{tensor.file}: tensor {tensor.name!r} ended while it was read")
        done += count


def _is_embedding(name: str) -> bool:
    return name.rpartition(".weight")[0].rpartition(".")[2] in (
        "embed_tokens",
        "wte",
        "embed_in",
        "word_embeddings",
    )


def _are_equal(one: StoredTensor, other: StoredTensor) -> bool:
    if not math.prod(one.shape):
        return False
    with open_weights(one.file) as first, open_weights(other.file) as second:
        pairs = zip(_pieces(first, one, 1), _pieces(second, other, 1), strict=True)
        return all(mine == yours for (_, mine), (_, yours) in pairs)
