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

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Iterator, Sequence

from python_backend.node.allocator import Allocator
from python_backend.node.errors import PoolInconsistent

REGIONS_PER_ARENA = 64
"""More: less is caught in other models' last regions. Fewer: less is lost to alignment at their edges."""


class Region:
    """One model's piece of the arena."""

    def __init__(self, model: str, offset: int, nbytes: int, usable: dict[int, int]) -> None:
        self.model = model
        self.offset = offset
        self.inner = Allocator(nbytes, offset, usable)
        self.room = 0
        """Its largest hole, as `Regions` has it in its lists."""

    @property
    def end(self) -> int:
        return self.offset + self.inner.total_bytes


class Regions:
    """The extents of one arena of `total_bytes`, by model. Decides which bytes; touches none."""

    def __init__(self, total_bytes: int) -> None:
        self._usable: dict[int, int] = {}
        """By alignment, of all holes of the arena."""
        self.outer = Allocator(total_bytes, 0, self._usable)
        self.used_bytes = 0
        self._by_offset: dict[int, Region] = {}
        self._offsets: list[int] = []
        self._rooms: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        """Of each model's regions that have any: (largest hole, offset), sorted. Of a full arena these are few."""

    @property
    def total_bytes(self) -> int:
        return self.outer.total_bytes

    @property
    def largest_free_bytes(self) -> int:
        return max([self.outer.largest_free_bytes, *(rooms[-1][0] for rooms in self._rooms.values())])

    def follow(self, alignment: int) -> None:
        """From now on `usable_bytes` knows blocks of this size."""
        if alignment not in self._usable:
            inner = sum(region.inner.aligned_free_bytes(alignment) for region in self._by_offset.values())
            self._usable[alignment] = inner + self.outer.aligned_free_bytes(alignment)

    def unfollow(self, alignment: int) -> None:
        del self._usable[alignment]

    def alloc(self, model: str, nbytes: int, alignment: int) -> int | None:
        """Offset of a new extent, a multiple of `alignment`; None: there is no such hole for this model."""
        offset = self._alloc_in(self._with_room(model, nbytes), nbytes, alignment)
        if offset is None and (opened := self._open(model, nbytes, alignment)) is not None:
            offset = self._alloc_in([(nbytes, opened.offset)], nbytes, alignment)
        if offset is None:
            others = [self._with_room(other, nbytes) for other in self._rooms if other != model]
            offset = self._alloc_in(sorted(fit for fits in others for fit in fits), nbytes, alignment)
        return offset

    def free(self, offset: int) -> int:
        """Returns the extent's size. Raises ExtentUnknown, ExtentFreedTwice."""
        region = self._region_at(offset)
        nbytes = region.inner.free(offset)
        self.used_bytes -= nbytes
        if not region.inner.leased_bytes:
            self._close(region)
        else:
            self._note_room(region)
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

    def largest_aligned_bytes(self, alignment: int) -> int:
        """The largest multiple of `alignment` that `alloc` would grant now."""
        inner = (
            self._by_offset[offset].inner.largest_aligned_bytes(alignment)
            for rooms in self._rooms.values()
            for _, offset in rooms
        )
        return max([self.outer.largest_aligned_bytes(alignment), *inner])

    def usable_bytes(self, alignment: int) -> int:
        """All that could be leased now in single blocks of a size that is followed."""
        return self._usable[alignment]

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
        self._check_sums()

    def _check_sums(self) -> None:
        regions = self._by_offset.values()
        used_bytes = sum(region.inner.leased_bytes for region in regions)
        if used_bytes != self.used_bytes:
            raise PoolInconsistent(f"the regions hold {used_bytes} bytes, the count says {self.used_bytes}")
        for alignment, usable in self._usable.items():
            inner = sum(region.inner.aligned_free_bytes(alignment) for region in regions)
            if usable != inner + self.outer.aligned_free_bytes(alignment):
                raise PoolInconsistent(f"{usable} bytes are said to be usable in blocks of {alignment}")
        listed = sorted((model, *room) for model, rooms in self._rooms.items() for room in rooms)
        if listed != sorted(
            (r.model, r.inner.largest_free_bytes, r.offset) for r in regions if r.inner.free_bytes
        ):
            raise PoolInconsistent(
                f"{len(listed)} regions are said to have room, but it is others or other room"
            )

    def _with_room(self, model: str, nbytes: int) -> Sequence[tuple[int, int]]:
        """(largest hole, offset) of its regions with a hole of so many bytes, the smallest first."""
        rooms = self._rooms.get(model, [])
        return rooms[bisect_left(rooms, (nbytes,)) :]

    def _alloc_in(self, fits: Sequence[tuple[int, int]], nbytes: int, alignment: int) -> int | None:
        """`fits`: as `_with_room`, in the order in which they are tried."""
        for _, region_offset in fits:
            region = self._by_offset[region_offset]
            if (offset := region.inner.alloc(nbytes, alignment)) is not None:
                self.used_bytes += nbytes
                self._note_room(region)
                return offset
        return None

    def _note_room(self, region: Region) -> None:
        """After each change of its holes."""
        room = region.inner.largest_free_bytes
        if room == region.room:
            return
        rooms = self._rooms[region.model]
        if region.room:
            del rooms[bisect_left(rooms, (region.room, region.offset))]
        if room:
            insort(rooms, (room, region.offset))
        elif not rooms:
            del self._rooms[region.model]
        region.room = room

    def _open(self, model: str, nbytes: int, alignment: int) -> Region | None:
        wished = max(nbytes, self.total_bytes // REGIONS_PER_ARENA // alignment * alignment)
        for size in (wished, nbytes):
            offset = self.outer.alloc(size, alignment)
            if offset is not None:
                region = self._by_offset[offset] = Region(model, offset, size, self._usable)
                insort(self._offsets, offset)
                return region
        return None

    def _close(self, region: Region) -> None:
        region.inner.retire()
        self._note_room(region)
        self.outer.free(region.offset)
        del self._by_offset[region.offset], self._offsets[bisect_left(self._offsets, region.offset)]

    def _region_at(self, offset: int) -> Region:
        index = bisect_right(self._offsets, offset) - 1
        if index >= 0 and offset < (region := self._by_offset[self._offsets[index]]).end:
            return region
        raise self.outer.no_extent_at(offset)
