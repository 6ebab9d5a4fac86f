"""The worker's block bookkeeping."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.sampling import SamplingParams
from python_backend.worker.blocks import BlockPool
from python_backend.worker.sequence import Sequence


class FakeLessor:
    """Hands out ids upwards until `total` blocks are out."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.out: list[range] = []
        self._next = 0

    def lease(self, num_blocks: int) -> range | None:
        if sum(map(len, self.out)) + num_blocks > self.total:
            return None
        extent = range(self._next, self._next + num_blocks)
        self._next += num_blocks
        self.out.append(extent)
        return extent

    def release(self, extent: range) -> None:
        self.out.remove(extent)


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


def test_unused_extents_go_back_and_used_ones_stay():
    """Only an extent in which every block is free is returned."""
    lessor = FakeLessor(16)
    pool = BlockPool(lessor, block_tokens=4, extent_blocks=2)
    stays, goes = sequence_of(8, 1), sequence_of(8, 2)
    pool.grow(stays, 8)
    pool.grow(goes, 8)
    pool.free(goes)

    pool.give_back_unused()
    assert [list(extent) for extent in lessor.out] == [stays.blocks]
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
    assert lessor.out == []
