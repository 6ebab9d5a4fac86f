"""Where in the arena a model's extents lie: in regions of its own, so that models do not interleave.

Published prefix blocks stay where they were leased, one here, one there, for hours. Between them lie holes of a few
blocks, and a model with another block size can use next to nothing of such a hole. So the arena is given out in
regions: a region belongs to one model while anything of it is in use, extents are placed by best fit over the
model's own regions first, and an empty region returns to the arena whole. What a model cannot use is then the
holes in the others' regions, not every hole of the arena; when nothing else is left, it may lease in those, too.

Why so: simulated over a day of churn with prefix blocks alive (`benchmarks/pool.py`), regions alone left a model
0.8 % of the free bytes at worst (a full cache leaves nothing free but holes), regions that `Pool.tidy` empties
57 %, and with leases abroad and regions emptied around a few held blocks it is 90 %.

A request that is larger than a region gets one of its own size, so the whole arena can be one extent.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator

from python_backend.node.allocator import Allocator
from python_backend.node.errors import PoolInconsistent

REGIONS_PER_ARENA = 64
"""More: less is caught in other models' last regions. Fewer: less is lost to alignment at their edges."""


class Region:
    """One model's piece of the arena."""

    def __init__(self, model: str, offset: int, nbytes: int) -> None:
        self.model = model
        self.offset = offset
        self.inner = Allocator(nbytes, offset)

    @property
    def end(self) -> int:
        return self.offset + self.inner.total_bytes


class Regions:
    """The extents of one arena of `total_bytes`, by model. Decides which bytes; touches none."""

    def __init__(self, total_bytes: int) -> None:
        self.outer = Allocator(total_bytes)
        self._with_holes: dict[int, Region] = {}
        """By offset. The others need not be looked at: of a full arena that is nearly all."""
        self._by_offset: dict[int, Region] = {}
        self._offsets: list[int] = []

    @property
    def total_bytes(self) -> int:
        return self.outer.total_bytes

    @property
    def used_bytes(self) -> int:
        return sum(region.inner.leased_bytes for region in self._by_offset.values())

    @property
    def largest_free_bytes(self) -> int:
        largest_inner = (region.inner.largest_free_bytes for region in self._by_offset.values())
        return max([self.outer.largest_free_bytes, *largest_inner])

    def alloc(self, model: str, nbytes: int, alignment: int) -> int | None:
        """Offset of a new extent, a multiple of `alignment`; None: there is no such hole for this model."""
        own: list[tuple[int, int]] = []
        foreign: list[tuple[int, int]] = []
        for region in self._with_holes.values():
            if (room := region.inner.largest_free_bytes) >= nbytes:
                (own if region.model == model else foreign).append((room, region.offset))
        offset = self._alloc_in(sorted(own), nbytes, alignment)
        if offset is None and (opened := self._open(model, nbytes, alignment)) is not None:
            offset = self._alloc_in([(nbytes, opened.offset)], nbytes, alignment)
        if offset is None:
            offset = self._alloc_in(sorted(foreign), nbytes, alignment)
        return offset

    def free(self, offset: int) -> int:
        """Returns the extent's size. Raises ExtentUnknown, ExtentFreedTwice."""
        region = self._region_at(offset)
        nbytes = region.inner.free(offset)
        self._with_holes[region.offset] = region
        if not region.inner.leased_bytes:
            self._close(region)
        return nbytes

    def split(self, offset: int, first_bytes: int) -> None:
        """As Allocator.split."""
        region = self._region_at(offset)
        region.inner.split(offset, first_bytes)

    def size_of(self, offset: int) -> int | None:
        """Bytes of the extent that starts at `offset`; None: none does."""
        index = bisect_right(self._offsets, offset) - 1
        if index < 0:
            return None
        region = self._by_offset[self._offsets[index]]
        return region.inner.size_of(offset)

    def start_of_region(self, offset: int) -> int:
        """Which region an extent lies in, by the region's own offset. Raises ExtentUnknown."""
        return self._region_at(offset).offset

    def num_extents(self, region_offset: int) -> int:
        return self._by_offset[region_offset].inner.num_extents

    def size_of_region(self, region_offset: int) -> int:
        return self._by_offset[region_offset].inner.total_bytes

    def free_bytes_in(self, region_offset: int) -> int:
        return self._by_offset[region_offset].inner.free_bytes

    def largest_aligned_bytes(self, model: str, alignment: int) -> int:
        """The largest multiple of `alignment` that `alloc` would grant this model now."""
        inner = (region.inner.largest_aligned_bytes(alignment) for region in self._with_holes.values())
        return max([self.outer.largest_aligned_bytes(alignment), *inner])

    def usable_bytes(self, model: str, alignment: int) -> int:
        """All that this model could lease now in single blocks of `alignment` bytes."""
        inner = sum(region.inner.aligned_free_bytes(alignment) for region in self._with_holes.values())
        return inner + self.outer.aligned_free_bytes(alignment)

    def check_in_steps(self) -> Iterator[None]:
        """Raises PoolInconsistent. Nothing may change between two steps."""
        self.outer.check()
        for region in list(self._by_offset.values()):
            yield
            region.inner.check()
            if self.outer.size_of(region.offset) != region.inner.total_bytes:
                raise PoolInconsistent(f"the region at {region.offset} is not what the arena gave")
            if not region.inner.leased_bytes:
                raise PoolInconsistent(f"the region at {region.offset} is empty and was not given back")
        if {r.offset for r in self._by_offset.values() if r.inner.free_bytes} != set(self._with_holes):
            raise PoolInconsistent(f"{len(self._with_holes)} regions are said to have holes, but others have")

    def _alloc_in(self, fits: list[tuple[int, int]], nbytes: int, alignment: int) -> int | None:
        """`fits`: (largest hole, offset) of regions, in the order in which they are tried."""
        for _, region_offset in fits:
            inner = self._by_offset[region_offset].inner
            if (offset := inner.alloc(nbytes, alignment)) is not None:
                if not inner.free_bytes:
                    del self._with_holes[region_offset]
                return offset
        return None

    def _open(self, model: str, nbytes: int, alignment: int) -> Region | None:
        wished = max(nbytes, self.total_bytes // REGIONS_PER_ARENA // alignment * alignment)
        for size in sorted({wished, nbytes}, reverse=True):
            offset = self.outer.alloc(size, alignment)
            if offset is not None:
                region = Region(model, offset, size)
                self._by_offset[offset] = region
                self._with_holes[offset] = region
                insort(self._offsets, offset)
                return region
        return None

    def _close(self, region: Region) -> None:
        self.outer.free(region.offset)
        del self._by_offset[region.offset], self._with_holes[region.offset]
        self._offsets.remove(region.offset)

    def _region_at(self, offset: int) -> Region:
        index = bisect_right(self._offsets, offset) - 1
        if index >= 0 and offset < (region := self._by_offset[self._offsets[index]]).end:
            return region
        raise self.outer.no_extent_at(offset)
