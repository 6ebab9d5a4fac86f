"""Which connection has which extents on lease. Lists only: the arena's own books are `regions`."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(slots=True)
class Lease:
    model: str
    tenant: str
    nbytes: int


@dataclass
class _Extents:
    by_offset: dict[int, Lease] = field(default_factory=dict)
    offsets: list[int] = field(default_factory=list)
    """Sorted."""


_NONE = _Extents()


class Holdings:
    """The extents of every owner."""

    def __init__(self) -> None:
        self._of_owner: dict[int, _Extents] = {}

    def all(self) -> Iterator[tuple[int, int, Lease]]:
        """Owner, offset and lease of each, in no order."""
        for owner, extents in self._of_owner.items():
            for offset, lease in extents.by_offset.items():
                yield owner, offset, lease

    def of(self, owner: int) -> list[tuple[int, Lease]]:
        return list(self._of_owner.get(owner, _NONE).by_offset.items())

    def is_extent(self, owner: int, start: int, end: int) -> bool:
        """Whether one of the owner's extents is exactly this range."""
        lease = self._of_owner.get(owner, _NONE).by_offset.get(start)
        return lease is not None and lease.nbytes == end - start

    def extents_within(self, owner: int, start: int, end: int) -> list[int]:
        """Those of the owner's extents that begin in the range."""
        offsets = self._of_owner.get(owner, _NONE).offsets
        return offsets[bisect_left(offsets, start) : bisect_left(offsets, end)]

    def extent_across(self, owner: int, at: int) -> int | None:
        """The owner's extent that begins before `at` and ends after it."""
        extents = self._of_owner.get(owner, _NONE)
        index = bisect_left(extents.offsets, at) - 1
        if index < 0:
            return None
        offset = extents.offsets[index]
        return offset if offset + extents.by_offset[offset].nbytes > at else None

    def first_gap(self, owner: int, start: int, end: int) -> int | None:
        """The first byte of the range that the owner does not hold; None: it holds all of it."""
        extents = self._of_owner.get(owner, _NONE)
        at = start
        for index in range(max(0, bisect_right(extents.offsets, start) - 1), len(extents.offsets)):
            offset = extents.offsets[index]
            if offset > at or at >= end:
                break
            at = max(at, offset + extents.by_offset[offset].nbytes)
        return at if at < end else None

    def add(self, owner: int, offset: int, lease: Lease) -> None:
        extents = self._of_owner.get(owner)
        if extents is None:
            extents = self._of_owner[owner] = _Extents()
        extents.by_offset[offset] = lease
        insort(extents.offsets, offset)

    def remove(self, owner: int, offset: int) -> Lease:
        extents = self._of_owner[owner]
        lease = extents.by_offset.pop(offset)
        del extents.offsets[bisect_left(extents.offsets, offset)]
        if not extents.offsets:
            del self._of_owner[owner]
        return lease

    def split(self, owner: int, offset: int, at: int) -> None:
        """The extent at `offset` becomes two, the second begins at `at`."""
        lease = self._of_owner[owner].by_offset[offset]
        self.add(owner, at, Lease(lease.model, lease.tenant, offset + lease.nbytes - at))
        lease.nbytes = at - offset
