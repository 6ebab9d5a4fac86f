"""A best-fit allocator over a range of bytes. It decides which bytes; it never touches them.

One range, one list of holes (pools that grow by pieces cannot serve their own maximum, rmm#1957). The books know
every extent, so a wrong or second free is refused, whatever the caller believes (LMCache#993).
"""

from __future__ import annotations

from bisect import bisect_left, insort

from python_backend.node.errors import ExtentFreedTwice, ExtentUnknown, PoolInconsistent


class Allocator:
    """Extents of `total_bytes` bytes from `first_byte` on. Finding a hole is a binary search over the sizes there
    are, and the lowest one of its size is taken.

    `usable`: for each alignment in it, what requests of exactly so many bytes would get, is kept up to date at each
    change. Several allocators may add to one.
    """

    def __init__(self, total_bytes: int, first_byte: int = 0, usable: dict[int, int] | None = None) -> None:
        if total_bytes < 0:
            raise ValueError(f"total_bytes = {total_bytes}, must not be negative")
        self.total_bytes = total_bytes
        self.first_byte = first_byte
        self.leased_bytes = 0
        self._usable = {} if usable is None else usable
        self._extents: dict[int, int] = {}
        self._size_of_hole: dict[int, int] = {}
        self._hole_ending_at: dict[int, int] = {}
        self._holes: list[tuple[int, int]] = []
        """(size, offset), sorted."""
        if total_bytes:
            self._add_hole(first_byte, total_bytes)

    @property
    def free_bytes(self) -> int:
        return self.total_bytes - self.leased_bytes

    @property
    def num_extents(self) -> int:
        return len(self._extents)

    @property
    def largest_free_bytes(self) -> int:
        """Of one hole; an aligned request may find less room in it."""
        return self._holes[-1][0] if self._holes else 0

    def alloc(self, nbytes: int, alignment: int = 1) -> int | None:
        """Offset of a new extent, a multiple of `alignment`, in the smallest hole it fits; None: no hole does.

        A hole of `nbytes + alignment - 1` always fits, so only holes between the two sizes are tried in vain.
        """
        if nbytes <= 0 or alignment <= 0:
            raise ValueError(f"nbytes = {nbytes}, alignment = {alignment}, must both be positive")
        for index in range(bisect_left(self._holes, (nbytes,)), len(self._holes)):
            size, hole = self._holes[index]
            offset = -(-hole // alignment) * alignment
            if offset + nbytes <= hole + size:
                self._carve(hole, size, offset, nbytes)
                return offset
        return None

    def free(self, offset: int) -> int:
        """Give an extent back and merge it with the holes on both sides; returns its size.

        Raises ExtentUnknown, ExtentFreedTwice; the books are unchanged then.
        """
        nbytes = self._extents.pop(offset, None)
        if nbytes is None:
            raise self.no_extent_at(offset)
        self.leased_bytes -= nbytes
        start, end = offset, offset + nbytes
        if (before := self._hole_ending_at.get(start)) is not None:
            self._remove_hole(before)
            start = before
        if (size_after := self._size_of_hole.get(end)) is not None:
            self._remove_hole(end)
            end += size_after
        self._add_hole(start, end - start)
        return nbytes

    def split(self, offset: int, first_bytes: int) -> None:
        """The extent at `offset` becomes two: `first_bytes`, and the rest. Raises ExtentUnknown, ExtentFreedTwice;
        ValueError when a part would be empty."""
        nbytes = self._extents.get(offset)
        if nbytes is None:
            raise self.no_extent_at(offset)
        if not 0 < first_bytes < nbytes:
            raise ValueError(f"cannot split an extent of {nbytes} bytes after {first_bytes}")
        self._extents[offset] = first_bytes
        self._extents[offset + first_bytes] = nbytes - first_bytes

    def aligned_free_bytes(self, alignment: int) -> int:
        """All that requests of exactly `alignment` bytes, so aligned, would get now."""
        return sum(_aligned_bytes(hole, size, alignment) for hole, size in self._size_of_hole.items())

    def retire(self) -> None:
        """The range is empty and goes: what is free in it is usable no more. The allocator has no hole left."""
        for hole in list(self._size_of_hole):
            self._remove_hole(hole)

    def size_of(self, offset: int) -> int | None:
        """Bytes of the extent that starts at `offset`; None: none does."""
        return self._extents.get(offset)

    def largest_aligned_bytes(self, alignment: int) -> int:
        """The largest multiple of `alignment` that `alloc` would grant now at that alignment."""
        return max(
            (_aligned_bytes(hole, size, alignment) for hole, size in self._size_of_hole.items()), default=0
        )

    def check(self) -> None:
        """Raise PoolInconsistent unless holes and extents tile the range and every index agrees."""
        pieces = [(offset, size, "extent") for offset, size in self._extents.items()]
        pieces += [(offset, size, "hole") for offset, size in self._size_of_hole.items()]
        end, previous = self.first_byte, ""
        for offset, size, kind in sorted(pieces):
            if offset != end or size <= 0:
                raise PoolInconsistent(
                    f"{kind} of {size} bytes at {offset}, but the one before ends at {end}"
                )
            if kind == previous == "hole":
                raise PoolInconsistent(f"two holes meet at {offset} and were not merged")
            end, previous = offset + size, kind
        if end != self.first_byte + self.total_bytes:
            raise PoolInconsistent(
                f"the pieces end at {end}, {self.total_bytes} bytes from {self.first_byte}"
            )
        if sum(self._extents.values()) != self.leased_bytes:
            raise PoolInconsistent(
                f"extents hold {sum(self._extents.values())} bytes, the count says {self.leased_bytes}"
            )
        by_size = sorted((size, offset) for offset, size in self._size_of_hole.items())
        by_end = {offset + size: offset for offset, size in self._size_of_hole.items()}
        if by_size != self._holes or by_end != self._hole_ending_at:
            raise PoolInconsistent(f"the indices over {len(by_size)} holes disagree")

    def _carve(self, hole: int, size: int, offset: int, nbytes: int) -> None:
        self._remove_hole(hole)
        if offset > hole:
            self._add_hole(hole, offset - hole)
        if offset + nbytes < hole + size:
            self._add_hole(offset + nbytes, hole + size - offset - nbytes)
        self._extents[offset] = nbytes
        self.leased_bytes += nbytes

    def _add_hole(self, offset: int, size: int) -> None:
        self._size_of_hole[offset] = size
        self._hole_ending_at[offset + size] = offset
        insort(self._holes, (size, offset))
        for alignment in self._usable:
            self._usable[alignment] += _aligned_bytes(offset, size, alignment)

    def _remove_hole(self, offset: int) -> None:
        size = self._size_of_hole.pop(offset)
        del self._hole_ending_at[offset + size]
        del self._holes[bisect_left(self._holes, (size, offset))]
        for alignment in self._usable:
            self._usable[alignment] -= _aligned_bytes(offset, size, alignment)

    def no_extent_at(self, offset: int) -> ExtentUnknown | ExtentFreedTwice:
        """The error for an offset where no extent starts; it knows whether one may have been there."""
        for hole, size in self._size_of_hole.items():
            if hole <= offset < hole + size:
                return ExtentFreedTwice(
                    f"offset {offset} lies in a hole ({hole}, {size} bytes): freed before?"
                )
        return ExtentUnknown(f"no extent starts at offset {offset} of {self.total_bytes} bytes")


def _aligned_bytes(hole: int, size: int, alignment: int) -> int:
    """What of a hole lies between the first and the last multiple of `alignment` in it."""
    nbytes = (hole + size) // alignment * alignment - -(-hole // alignment) * alignment
    return nbytes if nbytes > 0 else 0  # `max` would cost as much as the rest
