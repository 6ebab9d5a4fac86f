"""Several engines over one pool, driven by hypothesis: whatever the schedule, every token sees its own past.

The model is a book-keeper: computing a token writes into its slot what the slot must hold (the tokens up to it),
and reads back that every earlier slot of its sequence holds the same. A wrong, stale, recycled or foreign slot is
seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, repeat

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.sampling import SamplingParams
from python_backend.node.pool import Pool
from python_backend.node.quota import ModelQuota
from python_backend.pool_testing import BooksLessor, cut_tokens
from python_backend.worker.blocks import BlockPool
from python_backend.worker.engine import Engine, EngineConfig
from python_backend.worker.prefix import PrefixIdentity
from python_backend.worker.scheduler import SchedulerConfig
from tests.unit.python_backend.test_engine import LetterTokenizer

VOCABULARY = 128
BLOCK_TOKENS = 4


class BookkeepingRunner:
    """Next token: the sum of all before it, modulo a few letters. `arena` is shared by all engines."""

    def __init__(self, arena: dict[int, tuple[int, ...]]) -> None:
        self.arena = arena
        self.num_computed = 0

    def run(self, batch):
        rows = []
        for entry in batch:
            tokens, slots = entry.sequence.tokens, entry.sequence.slots
            for index in range(entry.start, entry.start + entry.count):
                self.arena[int(slots[index])] = tuple(tokens[: index + 1])
            for index in range(entry.start):
                assert self.arena[int(slots[index])] == tuple(tokens[: index + 1])
            self.num_computed += entry.count
            if entry.samples:
                rows.append(97 + sum(tokens) % 5)
        return torch.nn.functional.one_hot(torch.tensor(rows, dtype=torch.long), VOCABULARY).float()


class MoodyLessor(BooksLessor):
    """Refuses where the mood says so: leases, matches, single blocks that are published."""

    def __init__(self, pool: Pool, owner: int, moods: Iterator[bool]) -> None:
        super().__init__(pool, owner, "m")
        self._moods = moods

    def lease(self, num_blocks: int, tenant: str) -> range | int:
        return 0 if next(self._moods) else super().lease(num_blocks, tenant)

    def match(self, digests, tokens: bytes) -> list[int]:
        return [] if next(self._moods) else super().match(digests, tokens)

    def publish(self, blocks, digests, tokens: bytes, tenant: str) -> list[bool]:
        offers = zip(blocks, digests, cut_tokens(tokens, len(blocks)), strict=True)
        return [
            not next(self._moods) and super(MoodyLessor, self).publish([block], [digest], content, tenant)[0]
            for block, digest, content in offers
        ]


def engine_of(
    pool: Pool,
    owner: int,
    arena: dict[int, tuple[int, ...]],
    scheduler: SchedulerConfig,
    moods: Iterable[bool] = (),
) -> Engine:
    identity = PrefixIdentity("weights", "fp32", "fp32", BLOCK_TOKENS)
    lessor = MoodyLessor(pool, owner, chain(moods, repeat(False)))
    blocks = BlockPool(lessor, BLOCK_TOKENS, extent_blocks=2, identity=identity)
    config = EngineConfig(frozenset(), 64, pool.total_bytes, scheduler)
    return Engine(config, LetterTokenizer(), BookkeepingRunner(arena), blocks)


def pool_of(num_blocks: int, quota: ModelQuota | None = None) -> Pool:
    pool = Pool(num_blocks)
    pool.add_model("m", 1, quota or ModelQuota())
    return pool


def expected_text(prompt: str, num_tokens: int) -> str:
    tokens = [ord(letter) for letter in prompt]
    for _ in range(num_tokens):
        tokens.append(97 + sum(tokens) % 5)
    return "".join(map(chr, tokens[len(prompt) :]))


REQUESTS = st.lists(
    st.tuples(
        st.integers(0, 2),  # engine
        st.sampled_from(["", "abcdefgh", "abcdefghijkl", "zzzz"]),  # shared start
        st.text("xyz", min_size=1, max_size=6),  # own rest
        st.integers(1, 12),  # tokens wanted
        st.sampled_from(["", "acme"]),
        st.integers(0, 2),  # priority
        st.integers(0, 8),  # steps before it comes
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(
    requests=REQUESTS,
    num_blocks=st.integers(10, 40),
    prefill=st.integers(1, 16),
    mixed=st.integers(1, 6),
    cancelled=st.sets(st.integers(0, 11), max_size=3),
    moods=st.lists(st.booleans(), max_size=60),
    reclaims=st.sets(st.integers(0, 30), max_size=6),
)
def test_any_schedule_gives_every_request_its_own_text_and_one_end(
    requests, num_blocks, prefill, mixed, cancelled, moods, reclaims
):
    """Three engines, hits on each other's blocks, chunks, preemptions, cancels, tenants, priorities; a node that
    refuses at times, and asks for what is unused."""
    pool = pool_of(num_blocks)
    arena: dict[int, tuple[int, ...]] = {}
    scheduler = SchedulerConfig(4, prefill, mixed, horizon_tokens=3)
    engines = [engine_of(pool, owner, arena, scheduler, moods[owner::3]) for owner in range(3)]
    texts: dict[int, str] = {}
    ends: dict[int, list[str]] = {index: [] for index in range(len(requests))}
    coming = sorted(enumerate(requests), key=lambda item: item[1][6])
    for tick in range(400):
        while coming and coming[0][1][6] <= tick:
            index, (engine, start, rest, wanted, tenant, priority, _) = coming.pop(0)
            params = SamplingParams(max_tokens=wanted, temperature=0.0)
            engines[engine].add(index, start + rest, params, tenant=tenant, priority=priority)
        deltas = [delta for engine in engines for delta in engine.step(0.0)]
        if tick == 5:
            ended = (engine.cancel(index) for engine in engines for index in cancelled)
            deltas += [delta for delta in ended if delta is not None]
        for delta in deltas:
            texts[delta.request_id] = texts.get(delta.request_id, "") + delta.text
            if delta.finish_reason or delta.error_code:
                ends[delta.request_id].append(delta.finish_reason or delta.error_code)
        for engine in engines:
            if tick in reclaims:
                engine.give_back_unused()
            if not engine.has_work:
                engine.trim()  # an idle worker does so, by itself or when the node asks
            engine._pool.check(engine.scheduler.sequences)
        pool.check()
        if not coming and not any(engine.has_work for engine in engines):
            break
    for index, (_, start, rest, wanted, *_) in enumerate(requests):
        assert len(ends[index]) == 1
        if ends[index] == ["length"]:
            assert texts[index] == expected_text(start + rest, wanted)
        else:
            assert ends[index] == ["CANCELLED"]
            assert index in cancelled
    for engine in engines:
        engine.trim()
    assert pool.stats().leased_bytes == 0


def test_a_prompt_that_another_instance_computed_is_not_computed_again():
    """Eleven tokens, two full blocks of four: the second engine computes the three that are left."""
    pool, arena = pool_of(40), {}
    first, second = (engine_of(pool, owner, arena, SchedulerConfig()) for owner in (1, 2))
    first.add(1, "abcdefghijk", SamplingParams(max_tokens=1, temperature=0.0))
    first.step(0.0)
    second.add(2, "abcdefghijk", SamplingParams(max_tokens=1, temperature=0.0))
    (delta,) = second.step(0.0)
    assert second._runner.num_computed == 3
    assert delta.num_cached_tokens == 8


def test_tenants_do_not_see_each_other_s_prompts():
    """The same text of another tenant is computed anew."""
    pool, arena = pool_of(40), {}
    engine = engine_of(pool, 1, arena, SchedulerConfig())
    for request_id, tenant in enumerate(("acme", "evil")):
        engine.add(request_id, "abcdefghijk", SamplingParams(max_tokens=1, temperature=0.0), tenant=tenant)
        (delta,) = engine.step(0.0)
        assert delta.num_cached_tokens == 0


def test_a_higher_priority_takes_the_place_of_a_lower_one():
    """One seat: the second request has it at once, the first finishes later, whole."""
    pool, arena = pool_of(40), {}
    engine = engine_of(pool, 1, arena, SchedulerConfig(max_num_seqs=1))
    engine.add(1, "abc", SamplingParams(max_tokens=6, temperature=0.0))
    engine.step(0.0)
    engine.add(2, "xyz", SamplingParams(max_tokens=2, temperature=0.0), priority=1)
    order, texts = [], {1: "", 2: ""}
    while engine.has_work:
        for delta in engine.step(0.0):
            texts[delta.request_id] += delta.text
            order.append(delta.request_id)
    assert order[:2] == [2, 2]
    assert texts[1][-5:] == expected_text("abc", 6)[-5:]


def test_a_request_that_waits_too_long_for_others_memory_gets_the_numbers():
    """Another owner holds the pool: after 30 s the request ends, it does not hang."""
    pool, arena = pool_of(8), {}
    pool.lease(9, "m", "", 8)
    engine = engine_of(pool, 1, arena, SchedulerConfig())
    engine.add(1, "abcdefgh", SamplingParams(max_tokens=2, temperature=0.0))
    assert engine.step(100.0) == []
    assert engine.step(129.0) == []
    (delta,) = engine.step(131.0)
    assert delta.error_code == "UNAVAILABLE"
    assert "2 blocks for 8 tokens within 30 s" in delta.error


def test_a_hit_on_blocks_of_its_own_after_a_preemption_is_no_cached_prompt():
    """What a request published itself, and found again, its client is not told of as cached."""
    pool, arena = pool_of(40), {}
    engine = engine_of(pool, 1, arena, SchedulerConfig(max_num_seqs=1))
    engine.add(1, "abcdefghijk", SamplingParams(max_tokens=6, temperature=0.0))
    engine.step(0.0)
    engine.add(2, "z", SamplingParams(max_tokens=1, temperature=0.0), priority=1)
    cached = [delta.num_cached_tokens for _ in range(10) for delta in engine.step(0.0)]
    assert set(cached) == {0}
    assert engine.counters()["cached_tokens"] == 0
    assert engine._runner.num_computed == 11 + 1 + 4 + 4, (
        "of twelve tokens eight were found, not computed anew"
    )


def test_a_step_says_what_it_did():
    """Two prompts, one of them cached; then two decodes; then a preemption."""
    pool, arena = pool_of(40), {}
    engine = engine_of(pool, 1, arena, SchedulerConfig(max_num_seqs=2))
    params = SamplingParams(max_tokens=3, temperature=0.0)
    engine.add(0, "abcdefghijk", SamplingParams(max_tokens=1, temperature=0.0))
    engine.step(0.0)
    engine.add(1, "abcdefghijk", params)
    engine.add(2, "xyz", params)
    seen = []
    for step in range(3):
        if step == 2:
            engine.add(3, "uvw", params, priority=1)
        engine.step(0.0)
        metrics = engine.last_step
        assert metrics is not None
        assert metrics.duration_s > 0
        seen.append(
            (
                metrics.num_decodes,
                metrics.num_prefill_tokens,
                metrics.num_cached_tokens,
                metrics.num_preempted,
                metrics.num_running,
                metrics.num_waiting,
            )
        )
    # In the last step one decode ends its request; the other gave its place to the third prompt.
    assert seen == [(0, 3 + 3, 8, 0, 2, 0), (2, 0, 0, 0, 2, 0), (1, 3, 0, 1, 1, 1)]
