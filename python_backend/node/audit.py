"""Whether every byte of the pool has exactly one owner, and the counts say so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from python_backend.node.errors import PoolInconsistent
from python_backend.node.holdings import Holdings
from python_backend.node.ledger import ModelBooks
from python_backend.node.regions import Regions

CHECKED_A_STEP = 1024


def check_owners(models: Mapping[str, ModelBooks], holdings: Holdings, regions: Regions) -> Iterator[None]:
    """Each extent that the arena gave is one lease's or one published block's. A millisecond or so a step; raises
    PoolInconsistent."""
    owned: dict[int, int] = {}
    leased: Counter[str] = Counter()
    for model, offset, nbytes, is_leased in _owned(models, holdings):
        if offset in owned or regions.size_of(offset) != nbytes:
            raise PoolInconsistent(f"{model} has {nbytes} bytes at {offset}, the arena gave otherwise")
        owned[offset] = nbytes
        leased[model] += nbytes if is_leased else 0
        if len(owned) % CHECKED_A_STEP == 0:
            yield
    if sum(owned.values()) != regions.used_bytes:
        raise PoolInconsistent(
            f"{sum(owned.values())} bytes have owners, the arena gave {regions.used_bytes}"
        )
    for model, books in models.items():
        if books.leased_bytes != leased[model] or sum(books.leased_by_tenant.values()) != leased[model]:
            raise PoolInconsistent(
                f"{model}: {leased[model]} bytes on lease, its count says {books.leased_bytes}"
            )


def _owned(models: Mapping[str, ModelBooks], holdings: Holdings) -> Iterator[tuple[str, int, int, bool]]:
    """Model, offset, bytes, and whether it is a lease."""
    for _, offset, lease in holdings.all():
        yield lease.model, offset, lease.nbytes, True
    for model, books in models.items():
        for block in books.prefixes.blocks():
            yield model, block.offset, books.block_bytes, False
