"""Who holds which extents."""

from __future__ import annotations

import pytest

from python_backend.node.allocator import Allocator
from python_backend.node.errors import ExtentFreedTwice, ExtentUnknown, PoolInconsistent
from python_backend.node.leases import Leases


def leases_of(total_bytes: int = 1000) -> Leases:
    return Leases(Allocator(total_bytes))


def test_everything_of_an_owner_returns_and_nothing_of_another() -> None:
    """What a killed worker held is free again (LMCache#4980)."""
    leases = leases_of()
    for _ in range(3):
        leases.lease(1, 100, 100)
    leases.lease(2, 100, 100)
    assert leases.release_all(1) == 300
    assert leases.leased_bytes(2) == 100
    leases.check()
    assert leases.stats().free_bytes == 900


def test_releasing_all_twice_is_harmless() -> None:
    """A worker's end is noticed on more than one path (sglang-jax#982)."""
    leases = leases_of()
    leases.lease(1, 100, 1)
    assert [leases.release_all(1), leases.release_all(1)] == [100, 0]
    leases.check()


def test_an_owner_cannot_release_what_another_holds() -> None:
    """Nor a part of its own extent, nor more than that."""
    leases = leases_of()
    offset = leases.lease(1, 100, 1)
    assert offset is not None
    with pytest.raises(ExtentUnknown, match="owner 2 releases 100 bytes at 0, but holds nothing"):
        leases.release(2, offset, 100)
    for nbytes in (50, 150):
        with pytest.raises(ExtentUnknown, match="but holds 100 there"):
            leases.release(1, offset, nbytes)
    assert leases.leased_bytes(1) == 100


def test_a_second_release_is_refused() -> None:
    """By its own name: it tells a double free from a wrong one."""
    leases = leases_of()
    offset = leases.lease(1, 100, 1)
    assert offset is not None
    leases.release(1, offset, 100)
    with pytest.raises(ExtentFreedTwice):
        leases.release(1, offset, 100)
    leases.check()


def test_the_high_water_mark_stays_when_the_pool_empties() -> None:
    """It is the most bytes ever leased at once."""
    leases = leases_of()
    leases.lease(1, 300, 1)
    leases.lease(2, 200, 1)
    leases.release_all(1)
    stats = leases.stats()
    assert (stats.high_water_bytes, stats.leased_bytes) == (500, 200)


def test_an_exhausted_pool_is_none_and_no_lease() -> None:
    """A failed lease leaves nothing behind (kvcached#364)."""
    leases = leases_of(100)
    assert leases.lease(1, 101, 1) is None
    assert leases.leased_bytes(1) == 0
    assert leases.stats().high_water_bytes == 0


def test_a_byte_without_an_owner_is_found() -> None:
    """Conservation counts from both sides."""
    allocator = Allocator(100)
    leases = Leases(allocator)
    allocator.alloc(10)
    with pytest.raises(PoolInconsistent, match="owners hold 0 bytes, the allocator gave 10"):
        leases.check()
