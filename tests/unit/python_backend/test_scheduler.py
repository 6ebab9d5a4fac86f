"""Who runs in the next step."""

from contracts.sampling import SamplingParams
from python_backend.worker.blocks import BlockPool
from python_backend.worker.scheduler import Scheduler, SchedulerConfig
from python_backend.worker.sequence import Sequence, SequenceStatus
from tests.unit.python_backend.test_blocks import FakeLessor


def scheduler_of(total_blocks: int = 100, **config: int) -> Scheduler:
    pool = BlockPool(FakeLessor(total_blocks), block_tokens=4, extent_blocks=1)
    return Scheduler(pool, SchedulerConfig(**config))


def sequence_of(request_id: int, num_tokens: int, max_tokens: int = 4) -> Sequence:
    return Sequence(request_id, [1] * num_tokens, num_tokens, SamplingParams(max_tokens=max_tokens))


def run_step(scheduler: Scheduler) -> list[tuple[int, int, int]]:
    """Schedule, pretend to compute, sample a token where one is due. (request, start, count) each."""
    batch = scheduler.schedule()
    for entry in batch:
        samples = entry.samples
        entry.sequence.num_computed = entry.start + entry.count
        if samples:
            entry.sequence.tokens.append(1)
    return [(entry.sequence.request_id, entry.start, entry.count) for entry in batch]


def test_a_long_prompt_is_prefilled_in_chunks_of_the_budget():
    """10 tokens at 4 a step: 4, 4, 2, then the first decode."""
    scheduler = scheduler_of(prefill_tokens=4)
    scheduler.add(sequence_of(1, 10))

    steps = [run_step(scheduler) for _ in range(4)]
    assert steps == [[(1, 0, 4)], [(1, 4, 4)], [(1, 8, 2)], [(1, 10, 1)]]


def test_decodes_go_first_and_a_new_prompt_joins_in_the_smaller_budget():
    """A running stream gets its token in every step while another's prompt is prefilled."""
    scheduler = scheduler_of(prefill_tokens=100, mixed_prefill_tokens=3)
    scheduler.add(sequence_of(1, 5))
    run_step(scheduler)
    scheduler.add(sequence_of(2, 6))

    assert run_step(scheduler) == [(1, 5, 1), (2, 0, 3)]
    assert run_step(scheduler) == [(1, 6, 1), (2, 3, 3)]


def test_a_last_chunk_of_one_token_is_ordered_among_the_decodes():
    """A single token on top of a history costs no prefill budget; attention wants those first."""
    scheduler = scheduler_of(mixed_prefill_tokens=3)
    scheduler.add(sequence_of(1, 5))
    run_step(scheduler)
    scheduler.add(sequence_of(2, 4))
    run_step(scheduler)
    scheduler.add(sequence_of(3, 3))

    assert run_step(scheduler) == [(1, 6, 1), (2, 3, 1), (3, 0, 3)]


def test_no_more_than_the_limit_run_at_once_and_the_rest_waits_in_order():
    """max_num_seqs = 2: the third request starts when one has left."""
    scheduler = scheduler_of(max_num_seqs=2)
    sequences = [sequence_of(index, 4) for index in (1, 2, 3)]
    for sequence in sequences:
        scheduler.add(sequence)

    assert [entry[0] for entry in run_step(scheduler)] == [1, 2]
    scheduler.remove(sequences[0])
    assert [entry[0] for entry in run_step(scheduler)] == [2, 3]


def test_when_blocks_run_out_the_youngest_is_recomputed_later():
    """Two sequences of two blocks each fill four blocks; the older one's growth preempts the younger."""
    scheduler = scheduler_of(total_blocks=4, horizon_tokens=0)
    old, young = sequence_of(1, 8, 100), sequence_of(2, 8, 100)
    scheduler.add(old)
    scheduler.add(young)
    run_step(scheduler)

    assert run_step(scheduler) == [(1, 8, 1)]
    assert young.status is SequenceStatus.WAITING
    assert young.num_computed == 0
    assert scheduler.num_preemptions == 1
    scheduler.pool.check(scheduler.sequences)

    scheduler.remove(old)
    assert run_step(scheduler) == [(2, 0, 9)], "its own output so far is recomputed with the prompt"


def test_a_sequence_alone_that_cannot_grow_waits_without_its_blocks():
    """It holds nothing while it waits, so that others of the node can go on."""
    scheduler = scheduler_of(total_blocks=2, horizon_tokens=0)
    sequence = sequence_of(1, 8, 100)
    scheduler.add(sequence)
    run_step(scheduler)

    assert run_step(scheduler) == []
    assert sequence.blocks == []
    assert list(scheduler.waiting) == [sequence]


def test_admission_leaves_room_for_the_horizon():
    """With 4 blocks and one sequence of 2 running, a prompt of 1 block + 2 of horizon has to wait."""
    scheduler = scheduler_of(total_blocks=4, horizon_tokens=8)
    scheduler.add(sequence_of(1, 4, 8))
    run_step(scheduler)
    run_step(scheduler)
    scheduler.add(sequence_of(2, 4, 8))

    run_step(scheduler)
    assert [sequence.request_id for sequence in scheduler.waiting] == [2]


def test_only_a_pool_without_room_counts_as_short_of_blocks():
    """Not a batch that is full, and not a step in which everybody who waits finds room."""
    full, short = scheduler_of(max_num_seqs=1), scheduler_of(total_blocks=3, horizon_tokens=8)
    for scheduler in (full, short):
        scheduler.add(sequence_of(1, 4, 8))
        scheduler.add(sequence_of(2, 4, 8))
        run_step(scheduler)
        assert [sequence.request_id for sequence in scheduler.waiting] == [2]
    assert (full.is_short_of_blocks, short.is_short_of_blocks) == (False, True)

    short.remove(short.running[0])
    assert run_step(short) == [(2, 0, 4)]
    assert not short.is_short_of_blocks


def test_removing_a_sequence_frees_its_blocks_wherever_it_is():
    """Running or waiting: after it is gone, nothing is used."""
    scheduler = scheduler_of(max_num_seqs=1)
    running, waiting = sequence_of(1, 4), sequence_of(2, 4)
    scheduler.add(running)
    scheduler.add(waiting)
    run_step(scheduler)

    scheduler.remove(waiting)
    scheduler.remove(running)
    assert not scheduler.has_work
    assert scheduler.pool.num_used == 0
