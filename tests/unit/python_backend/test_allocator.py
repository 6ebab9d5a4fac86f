"""The byte-range allocator: best fit, alignment, merging, and refusal of wrong frees."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from python_backend.node.allocator import Allocator
from python_backend.node.errors import ExtentFreedTwice, ExtentUnknown, PoolInconsistent


def with_holes(*sizes: int) -> Allocator:
    """An allocator whose holes have exactly these sizes, kept apart by one-byte extents."""
    allocator = Allocator(sum(sizes) + len(sizes))
    offsets = []
    for size in sizes:
        offset = allocator.alloc(size)
        assert offset is not None
        offsets.append(offset)
        allocator.alloc(1)
    for offset in offsets:
        allocator.free(offset)
    return allocator


def test_the_smallest_hole_that_fits_is_taken() -> None:
    """Best fit: 20 bytes go into the hole of 25, neither the first (100) nor the largest."""
    allocator = with_holes(100, 10, 25, 200)
    assert allocator.alloc(20) == 100 + 1 + 10 + 1
    allocator.check()


def test_a_request_as_large_as_the_pool_is_served() -> None:
    """The maximum is servable, first and after use (rmm#1957 cannot)."""
    allocator = Allocator(1 << 20)
    for _ in range(2):
        offset = allocator.alloc(1 << 20)
        assert offset == 0
        assert allocator.alloc(1) is None
        allocator.free(offset)


def test_a_full_pool_answers_none_and_changes_nothing() -> None:
    """Exhaustion is an answer, not an error (kvcached#262)."""
    allocator = with_holes(10, 10)
    assert allocator.alloc(11) is None
    assert (allocator.free_bytes, allocator.largest_free_bytes) == (20, 10)
    allocator.check()


def test_alignment_that_is_no_power_of_two_is_kept() -> None:
    """KV blocks have odd sizes; their ids are offset / size, so offsets are multiples."""
    allocator = Allocator(100_000)
    allocator.alloc(10)
    assert allocator.alloc(2 * 737, alignment=737) == 737
    allocator.check()


def test_the_bytes_skipped_for_alignment_stay_usable() -> None:
    """The piece in front of an aligned extent is a hole, not waste."""
    allocator = Allocator(128)
    allocator.alloc(1)
    assert allocator.alloc(64, alignment=64) == 64
    assert allocator.alloc(63) == 1
    assert allocator.free_bytes == 0


def test_a_large_enough_hole_that_alignment_spoils_is_passed_over() -> None:
    """A hole of the right size may hold no aligned start; the next larger one is tried."""
    allocator = with_holes(3, 65, 127)
    assert allocator.alloc(64, alignment=66) == 132
    allocator.check()


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)])
def test_neighbours_merge_in_whatever_order_they_return(order: tuple[int, ...]) -> None:
    """Three extents side by side become one hole again."""
    allocator = Allocator(30)
    offsets = [allocator.alloc(10) for _ in range(3)]
    for index in order:
        offset = offsets[index]
        assert offset is not None
        allocator.free(offset)
        allocator.check()
    assert allocator.largest_free_bytes == 30


def test_a_second_free_is_refused_by_name() -> None:
    """LMCache#993: one double free drained a whole pool."""
    allocator = Allocator(100)
    offset = allocator.alloc(10)
    assert offset is not None
    allocator.free(offset)
    with pytest.raises(ExtentFreedTwice, match="offset 0 lies in a hole"):
        allocator.free(offset)
    assert allocator.free_bytes == 100


@pytest.mark.parametrize("offset", [5, 100, -1, 1000])
def test_a_free_of_no_extents_start_is_refused_by_name(offset: int) -> None:
    """The middle of an extent, the end of the range, and offsets outside it."""
    allocator = Allocator(100)
    allocator.alloc(100)
    with pytest.raises(ExtentUnknown, match=f"offset {offset}"):
        allocator.free(offset)
    allocator.check()


@pytest.mark.parametrize(("nbytes", "alignment"), [(0, 1), (-1, 1), (1, 0)])
def test_sizes_that_mean_nothing_are_refused(nbytes: int, alignment: int) -> None:
    """A caller's arithmetic that underflowed must not become an extent (kvcached#377)."""
    with pytest.raises(ValueError, match="must both be positive"):
        Allocator(100).alloc(nbytes, alignment)


def test_an_empty_pool_serves_nothing() -> None:
    """Nodes of embedding models have no KV pool."""
    allocator = Allocator(0)
    assert allocator.alloc(1) is None
    assert allocator.largest_aligned_bytes(16) == 0
    allocator.check()


def test_broken_books_are_found() -> None:
    """`check` is worth calling: it sees a lost byte, an overlap and an unmerged hole."""
    lost = with_holes(10, 20)
    lost.leased_bytes += 1
    overlap = with_holes(10, 20)
    overlap._extents[10] = 2
    unmerged = Allocator(20)
    unmerged._remove_hole(0)
    unmerged._add_hole(0, 10)
    unmerged._add_hole(10, 10)
    for broken in (lost, overlap, unmerged):
        with pytest.raises(PoolInconsistent):
            broken.check()


@given(
    holes=st.lists(st.integers(1, 300), min_size=1, max_size=8),
    alignment=st.integers(1, 64),
)
def test_the_largest_aligned_size_is_what_alloc_grants(holes: list[int], alignment: int) -> None:
    """PoolExhausted names a size that a second try would get, and no smaller one."""
    allocator = with_holes(*holes)
    largest = allocator.largest_aligned_bytes(alignment)
    assert allocator.alloc(largest + alignment, alignment) is None
    assert largest == 0 or allocator.alloc(largest, alignment) is not None


class AllocatorModel(RuleBasedStateMachine):
    """Any order of allocs and frees, against a plain list of extents."""

    def __init__(self) -> None:
        super().__init__()
        self.allocator = Allocator(10_000)
        self.extents: dict[int, int] = {}

    @rule(nbytes=st.integers(1, 3000), alignment=st.sampled_from([1, 8, 64, 737, 4096]))
    def alloc(self, nbytes: int, alignment: int) -> None:
        offset = self.allocator.alloc(nbytes, alignment)
        if offset is None:
            assert not self.any_gap_fits(nbytes, alignment)
            return
        assert offset % alignment == 0
        assert offset >= 0
        assert offset + nbytes <= 10_000
        for start, size in self.extents.items():
            assert offset + nbytes <= start or start + size <= offset
        self.extents[offset] = nbytes

    @precondition(lambda self: self.extents)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.extents)))
        assert self.allocator.free(offset) == self.extents.pop(offset)

    @rule(offset=st.integers(-10, 10_010))
    def free_what_is_no_extent(self, offset: int) -> None:
        if offset not in self.extents:
            with pytest.raises((ExtentUnknown, ExtentFreedTwice)):
                self.allocator.free(offset)

    @invariant()
    def books_add_up(self) -> None:
        self.allocator.check()
        assert self.allocator.leased_bytes == sum(self.extents.values())
        assert self.allocator.largest_free_bytes == max(
            (end - start for start, end in self.gaps()), default=0
        )

    def gaps(self) -> list[tuple[int, int]]:
        gaps, end = [], 0
        for start, size in [*sorted(self.extents.items()), (10_000, 0)]:
            if start > end:
                gaps.append((end, start))
            end = start + size
        return gaps

    def any_gap_fits(self, nbytes: int, alignment: int) -> bool:
        return any(-(-start // alignment) * alignment + nbytes <= end for start, end in self.gaps())

    def teardown(self) -> None:
        for offset in list(self.extents):
            self.allocator.free(offset)
        self.allocator.check()
        assert self.allocator.largest_free_bytes == 10_000


TestAllocatorModel = AllocatorModel.TestCase
TestAllocatorModel.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
