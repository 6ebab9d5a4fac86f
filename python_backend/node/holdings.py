"""Which connection has which extents on lease. Lists only: the arena's own books are `regions`."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class Lease:
    model: str
    tenant: str
    nbytes: int


@dataclass
class _Extents:
    by_offset: dict[int, Lease] = field(default_factory=dict)
    offsets: list[int] = field(default_factory=list)
    """Sorted."""


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
        extents = self._of_owner.get(owner)
        return list(extents.by_offset.items()) if extents else []

    def from_byte(self, owner: int, start: int) -> Iterator[tuple[int, Lease]]:
        """The owner's extents from the one that contains `start` on."""
        extents = self._of_owner.get(owner)
        if extents is None:
            return
        index = max(0, bisect_right(extents.offsets, start) - 1)
        for offset in extents.offsets[index:]:
            if offset + extents.by_offset[offset].nbytes > start:
                yield offset, extents.by_offset[offset]

    def first_gap(self, owner: int, start: int, end: int) -> int | None:
        """The first byte of the range that the owner does not hold; None: it holds all of it."""
        at = start
        for offset, lease in self.from_byte(owner, start):
            if offset > at or at >= end:
                break
            at = offset + lease.nbytes
        return at if at < end else None

    def add(self, owner: int, offset: int, lease: Lease) -> None:
        extents = self._of_owner.setdefault(owner, _Extents())
        extents.by_offset[offset] = lease
        insort(extents.offsets, offset)

    def remove(self, owner: int, offset: int) -> Lease:
        extents = self._of_owner[owner]
        lease = extents.by_offset.pop(offset)
        extents.offsets.remove(offset)
        if not extents.offsets:
            del self._of_owner[owner]
        return lease

    def split(self, owner: int, offset: int, at: int) -> None:
        """The extent at `offset` becomes two, the second begins at `at`."""
        lease = self._of_owner[owner].by_offset[offset]
        self.add(owner, at, Lease(lease.model, lease.tenant, offset + lease.nbytes - at))
        lease.nbytes = at - offset
