"""The worker's block bookkeeping."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.sampling import SamplingParams
from python_backend.node.pool import Pool
from python_backend.node.quota import ModelQuota
from python_backend.pool_testing import BooksLessor
from python_backend.worker.blocks import BlockPool
from python_backend.worker.prefix import PrefixIdentity
from python_backend.worker.sequence import Sequence


class FakeLessor:
    """Hands out ids upwards until `total` blocks are out, at most `largest` at once; nothing is ever published."""

    def __init__(self, total: int, largest: int = 1000) -> None:
        self.total = total
        self.largest = largest
        self.num_asked = 0
        self.out: set[int] = set()
        self._next = 0

    def lease(self, num_blocks: int, tenant: str) -> range | int:
        self.num_asked += 1
        if len(self.out) + num_blocks > self.total or num_blocks > self.largest:
            return self.total - len(self.out)
        extent = range(self._next, self._next + num_blocks)
        self._next += num_blocks
        self.out |= set(extent)
        return extent

    def release(self, blocks: range) -> None:
        assert self.out >= set(blocks)
        self.out -= set(blocks)

    def match(self, digests, tokens: bytes) -> list[int]:
        return []

    def publish(self, blocks, digests, tokens: bytes, tenant: str) -> list[bool]:
        return [False] * len(blocks)

    def drop(self, blocks) -> None:
        raise AssertionError("nothing was published")


def sequence_of(num_tokens: int, request_id: int = 0) -> Sequence:
    return Sequence(request_id, [1] * num_tokens, num_tokens, SamplingParams())


def test_a_sequence_gets_the_slots_of_its_blocks_in_order():
    """Token i lies at slots[i]: block i // 4, offset i % 4."""
    pool = BlockPool(FakeLessor(8), block_tokens=4, extent_blocks=1)
    sequence = sequence_of(6)

    assert pool.grow(sequence, 6)
    assert sequence.blocks == [0, 1]
    assert sequence.slots.tolist() == list(range(8))


def test_growing_within_the_last_block_takes_no_other_block():
    """Room for 4 tokens is one block, also the second time it is asked for."""
    pool = BlockPool(FakeLessor(8), block_tokens=4, extent_blocks=1)
    sequence = sequence_of(3)

    pool.grow(sequence, 3)
    pool.grow(sequence, 4)
    assert len(sequence.blocks) == 1


def test_when_the_pool_is_out_nothing_changes():
    """A refused growth leaves the sequence and the free blocks as they were."""
    pool = BlockPool(FakeLessor(2), block_tokens=4, extent_blocks=1)
    first, second = sequence_of(4), sequence_of(8)
    pool.grow(first, 4)
    free_before = pool.num_free

    assert not pool.grow(second, 8)
    assert second.blocks == []
    assert pool.num_free == free_before
    assert pool.num_leased == 1, "the one block that was still to be had must not stay here unused"
    pool.check([first, second])


def test_blocks_come_in_pieces_where_no_hole_is_large_enough():
    """Seven blocks, never more than two at once: 7 is refused, then 3, then by ones of what is left."""
    lessor = FakeLessor(8, largest=2)
    pool = BlockPool(lessor, block_tokens=4, extent_blocks=1)
    sequence = sequence_of(28)
    assert pool.grow(sequence, 28)
    assert len(lessor.out) == 7
    pool.check([sequence])


def test_what_is_not_there_at_all_is_asked_for_once():
    """No piece of it is leased only to go back: that would evict what others can still use."""
    lessor = FakeLessor(6)
    pool = BlockPool(lessor, block_tokens=4)
    assert not pool.ensure_free(7)
    assert (lessor.num_asked, lessor.out) == (1, set())


def test_free_blocks_of_another_tenant_serve_this_one_through_the_pool():
    """They go back, are leased anew on the right account, and the other's are not lost to this worker's check."""
    lessor = FakeLessor(4)
    pool = BlockPool(lessor, block_tokens=4, extent_blocks=4)
    gone, comes = sequence_of(4), sequence_of(12)
    gone.tenant, comes.tenant = "acme", "other"
    pool.grow(gone, 4)
    pool.free(gone)
    assert pool.grow(comes, 12)
    assert len(lessor.out) <= 4
    pool.check([comes])


def test_a_busy_worker_keeps_its_reserve_in_all_and_no_more():
    """Of 30 free blocks in one run and 6 of another tenant it keeps 10."""
    lessor = FakeLessor(64)
    pool = BlockPool(lessor, block_tokens=4, extent_blocks=1)
    pool.ensure_free(30)
    pool.ensure_free(6, "acme")
    pool.give_back_unused(keep=10)
    assert pool.num_free == len(lessor.out) == 10
    pool.check([])


class RecordingMemory:
    def __init__(self):
        self.calls = []

    def open_private(self, blocks):
        self.calls.append(("private", blocks))

    def open_shared(self, blocks):
        self.calls.append(("shared", blocks))

    def close(self, blocks):
        self.calls.append(("closed", blocks))


def test_memory_is_opened_only_when_all_of_it_was_leased():
    """Zeroing takes longer than leasing: pieces that go back again are never touched."""

    class Deceived(FakeLessor):
        def lease(self, num_blocks, tenant):
            answer = super().lease(num_blocks, tenant)
            return answer if isinstance(answer, range) else 100

    lessor, memory = Deceived(3), RecordingMemory()
    pool = BlockPool(lessor, block_tokens=4, extent_blocks=1, memory=memory)
    assert not pool.ensure_free(4)
    assert memory.calls == []
    assert lessor.out == set()
    assert pool.ensure_free(3)
    assert memory.calls == [("private", range(3, 6))]


def test_what_is_published_can_be_read_and_what_is_given_back_cannot_be_touched():
    """A block that is the pool's stays in reach until nobody here reads it; the rest closes as it goes back."""
    books = Pool(8)
    books.add_model("m", 1, ModelQuota())
    memory = RecordingMemory()
    identity = PrefixIdentity("weights", "fp32", "fp32", 4)
    pool = BlockPool(BooksLessor(books, 1, "m"), 4, extent_blocks=2, memory=memory, identity=identity)
    sequence = sequence_of(6)
    pool.grow(sequence, 6)
    sequence.num_computed = 6
    pool.publish([sequence])
    pool.check([sequence])
    first, second = sequence.blocks
    pool.free(sequence)
    pool.give_back_unused()
    assert memory.calls == [
        ("private", range(first, second + 1)),
        ("shared", range(first, first + 1)),
        ("closed", range(first, first + 1)),
        ("closed", range(second, second + 1)),
    ]
    books.check()
    assert (books.stats().leased_bytes, books.stats().cached_bytes) == (0, 1)


def test_unused_blocks_go_back_and_used_ones_stay():
    """Whatever extents they came in."""
    lessor = FakeLessor(16)
    pool = BlockPool(lessor, block_tokens=4, extent_blocks=2)
    stays, goes = sequence_of(8, 1), sequence_of(8, 2)
    pool.grow(stays, 8)
    pool.grow(goes, 8)
    pool.free(goes)

    pool.give_back_unused()
    assert lessor.out == set(stays.blocks)
    pool.check([stays])


def test_a_lost_block_is_found_by_the_check():
    """Conservation: free + used == leased."""
    pool = BlockPool(FakeLessor(8), block_tokens=4)
    sequence = sequence_of(4)
    pool.grow(sequence, 4)
    sequence.blocks.pop()

    with pytest.raises(AssertionError, match="do not add up"):
        pool.check([sequence])


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 40), st.booleans()), max_size=60))
def test_no_order_of_growing_and_freeing_loses_or_doubles_a_block(steps):
    """Whatever sequences do, every leased block is in exactly one place."""
    lessor = FakeLessor(24)
    pool = BlockPool(lessor, block_tokens=4, extent_blocks=3)
    sequences = [sequence_of(1, index) for index in range(6)]
    for index, tokens, frees in steps:
        if frees:
            pool.free(sequences[index])
            pool.give_back_unused()
        else:
            pool.grow(sequences[index], tokens)
        pool.check(sequences)
    for sequence in sequences:
        pool.free(sequence)
    pool.give_back_unused()
    assert not lessor.out
