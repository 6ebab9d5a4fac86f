"""The pool's figures on one shared page, for whoever samples them often: no call, no lock, read-only.

A file in the run directory, mapped by its readers. The node alone writes: it makes the sequence number odd, writes,
and makes it even again; a reader takes a snapshot only between two equal even numbers. Nothing that a reader does,
or a node that dies while writing, can hold anybody up (server#8882).
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from pathlib import Path

import msgspec

STATS_NAME = "pool.stats"
PAGE_BYTES = 64 * 1024
READ_ATTEMPTS = 200
_HEADER = struct.Struct("<QI")
_SEQUENCE = struct.Struct("<Q")
_LENGTH = struct.Struct("<I")


class StatsUnreadable(Exception):
    """No node has written here, or the one that did was killed while it wrote."""


class ModelPage(msgspec.Struct, frozen=True):
    """One model's part of the pool, bytes unless the name says otherwise."""

    model: str
    block_bytes: int
    leased_bytes: int
    published_bytes: int
    cached_bytes: int
    usable_blocks: int
    num_refused: int


class PoolPage(msgspec.Struct, frozen=True):
    """The pool at `unix_s`."""

    unix_s: float
    total_bytes: int
    leased_bytes: int
    published_bytes: int
    cached_bytes: int
    free_bytes: int
    largest_free_bytes: int
    high_water_bytes: int
    num_failed_checks: int
    """How often the node's books did not add up: 0."""
    models: list[ModelPage]


class StatsWriter:
    """Makes the page anew, 0600; the node's alone."""

    def __init__(self, path: Path) -> None:
        path.unlink(missing_ok=True)  # readers of a former node keep theirs
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, PAGE_BYTES)
            self._map = mmap.mmap(fd, PAGE_BYTES)
        finally:
            os.close(fd)
        self._path = path
        self._sequence = 0

    def write(self, page: PoolPage) -> None:
        """Models that do not fit the page are left out, the last ones first."""
        data = msgspec.msgpack.encode(page)
        while len(data) > PAGE_BYTES - _HEADER.size:
            page = msgspec.structs.replace(page, models=page.models[:-1])
            data = msgspec.msgpack.encode(page)
        _SEQUENCE.pack_into(self._map, 0, self._sequence + 1)
        # The length, too, while the number is odd: a reader must never see a new number with an old length.
        _LENGTH.pack_into(self._map, _SEQUENCE.size, len(data))
        self._map[_HEADER.size : _HEADER.size + len(data)] = data
        self._sequence += 2
        _SEQUENCE.pack_into(self._map, 0, self._sequence)

    def close(self) -> None:
        self._path.unlink(missing_ok=True)
        self._map.close()


def read_stats(path: Path) -> PoolPage:
    """Raises StatsUnreadable; FileNotFoundError when no node runs there."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), PAGE_BYTES, prot=mmap.PROT_READ) as page:
        for _ in range(READ_ATTEMPTS):
            sequence, length = _HEADER.unpack_from(page, 0)
            if sequence and sequence % 2 == 0:
                data = page[_HEADER.size : _HEADER.size + length]
                if _SEQUENCE.unpack_from(page, 0)[0] == sequence:
                    return msgspec.msgpack.decode(data, type=PoolPage)
            time.sleep(0)
    raise StatsUnreadable(f"{path}: no whole page after {READ_ATTEMPTS} tries; is the node alive?")
