"""The KV memory of a worker on CPU: all of it mapped, only its own blocks in reach.

The memfd is mapped once, without access. Leased blocks are opened read-write, their pages mapped and zeroed, so
that no forward pays a page fault; published ones are opened read-only. Whatever else the worker touches kills it,
and it alone: this guards against bugs, not against hostile code, which could map the memfd anew.
"""

from __future__ import annotations

import ctypes
import mmap
import os

import torch
from torch import Tensor

PROT_NONE = 0
MADV_POPULATE_WRITE = 23
"""Linux 5.14: maps all pages in one call, in a third of the time that touching them takes."""
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class KVMapping:
    """`raw`: uint8 [nbytes], all blocks, most of them out of reach."""

    def __init__(self, fd: int, nbytes: int, block_bytes: int) -> None:
        """`block_bytes`: a multiple of the page size. Raises OSError."""
        if block_bytes % mmap.PAGESIZE:
            raise ValueError(f"blocks of {block_bytes} bytes are no multiple of the page, {mmap.PAGESIZE}")
        self._block_bytes = block_bytes
        self._map = mmap.mmap(fd, nbytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self.raw: Tensor = torch.frombuffer(self._map, dtype=torch.uint8)
        self._address = self.raw.data_ptr()
        self._protect(0, nbytes, PROT_NONE)

    def open_private(self, blocks: range) -> None:
        """Read-write, and zero: what another request left there is gone."""
        start, nbytes = self._bytes_of(blocks)
        self._protect(start, nbytes, mmap.PROT_READ | mmap.PROT_WRITE)
        # An older kernel refuses; then the zeros map the pages.
        _libc.madvise(self._address + start, nbytes, MADV_POPULATE_WRITE)
        ctypes.memset(self._address + start, 0, nbytes)

    def open_shared(self, blocks: range) -> None:
        """Read-only: others read them too."""
        self._protect(*self._bytes_of(blocks), mmap.PROT_READ)

    def close(self, blocks: range) -> None:
        """Out of reach again."""
        self._protect(*self._bytes_of(blocks), PROT_NONE)

    def _bytes_of(self, blocks: range) -> tuple[int, int]:
        return blocks.start * self._block_bytes, len(blocks) * self._block_bytes

    def _protect(self, start: int, nbytes: int, access: int) -> None:
        if _libc.mprotect(self._address + start, nbytes, access):
            error = ctypes.get_errno()
            raise OSError(error, f"mprotect of {nbytes} bytes of KV memory: {os.strerror(error)}")
