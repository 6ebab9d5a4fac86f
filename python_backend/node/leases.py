"""Who holds which extents. An owner is a connection: when it goes, everything it holds returns."""

from __future__ import annotations

from dataclasses import dataclass

from python_backend.node.allocator import Allocator
from python_backend.node.errors import ExtentUnknown, PoolInconsistent


@dataclass(frozen=True)
class PoolStats:
    total_bytes: int
    leased_bytes: int
    free_bytes: int
    largest_free_bytes: int
    high_water_bytes: int
    """Most bytes ever leased at once since the node started."""


class Leases:
    """The extents of `allocator` by owner. Only this class allocates from it."""

    def __init__(self, allocator: Allocator) -> None:
        self._allocator = allocator
        self._extents_of: dict[int, dict[int, int]] = {}
        self._high_water_bytes = 0

    def lease(self, owner: int, nbytes: int, alignment: int) -> int | None:
        """Offset of a new extent of `owner`; None: no hole is large enough, nothing has changed."""
        offset = self._allocator.alloc(nbytes, alignment)
        if offset is not None:
            self._extents_of.setdefault(owner, {})[offset] = nbytes
            self._high_water_bytes = max(self._high_water_bytes, self._allocator.leased_bytes)
        return offset

    def release(self, owner: int, offset: int, nbytes: int) -> None:
        """Raises ExtentUnknown unless `owner` holds exactly this extent, ExtentFreedTwice if it is free."""
        held = self._extents_of.get(owner, {}).get(offset)
        if held is None and self._allocator.size_of(offset) is None:
            self._allocator.free(offset)  # raises, and knows which of the two it is
        if held != nbytes:
            raise ExtentUnknown(
                f"owner {owner} releases {nbytes} bytes at {offset}, but holds {held or 'nothing'} there"
            )
        self._allocator.free(offset)
        extents = self._extents_of[owner]
        del extents[offset]
        if not extents:
            del self._extents_of[owner]

    def release_all(self, owner: int) -> int:
        """Everything of `owner` returns; the bytes that were. Harmless when repeated."""
        return sum(self._allocator.free(offset) for offset in self._extents_of.pop(owner, {}))

    def leased_bytes(self, owner: int) -> int:
        return sum(self._extents_of.get(owner, {}).values())

    def largest_aligned_bytes(self, alignment: int) -> int:
        return self._allocator.largest_aligned_bytes(alignment)

    def stats(self) -> PoolStats:
        return PoolStats(
            total_bytes=self._allocator.total_bytes,
            leased_bytes=self._allocator.leased_bytes,
            free_bytes=self._allocator.free_bytes,
            largest_free_bytes=self._allocator.largest_free_bytes,
            high_water_bytes=self._high_water_bytes,
        )

    def check(self) -> None:
        """Raise PoolInconsistent unless free + leased == total, and every leased byte has one owner."""
        self._allocator.check()
        owned_bytes = sum(sum(extents.values()) for extents in self._extents_of.values())
        if owned_bytes != self._allocator.leased_bytes:
            raise PoolInconsistent(
                f"owners hold {owned_bytes} bytes, the allocator gave {self._allocator.leased_bytes}"
            )
