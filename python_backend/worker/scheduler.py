"""Which sequences run in the next step, and how many tokens of each. Pure: no tensors, no clock, no sockets.

Decodes go first (one token each); what is left of the token budget goes to prefill chunks, by priority and then by
age. A decode that finds no block preempts the youngest running sequence of the lowest priority, which is recomputed
later; so does a waiting sequence of a higher priority.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass
from operator import attrgetter

from python_backend.worker.blocks import BlockPool
from python_backend.worker.sequence import Sequence, SequenceStatus


@dataclass(frozen=True)
class SchedulerConfig:
    max_num_seqs: int = 64
    """Sequences that run at once."""
    prefill_tokens: int = 512
    """Prompt tokens in a step in which nothing decodes: prefill alone is faster in large pieces."""
    mixed_prefill_tokens: int = 128
    """Prompt tokens beside decodes: more would stall running streams (about 0.3 s for 128 on two cores)."""
    horizon_tokens: int = 64
    """Admission counts on this much output, so that a new sequence is not preempted at once."""


@dataclass(frozen=True)
class Scheduled:
    """One sequence's part of a step: tokens[start : start + count]."""

    sequence: Sequence
    start: int
    count: int

    @property
    def is_decode(self) -> bool:
        """One token on top of a history: attention batches it with others of its kind."""
        return self.start > 0 and self.count == 1

    @property
    def samples(self) -> bool:
        """The chunk reaches the newest token, so the step yields this sequence's next one."""
        return self.start + self.count == self.sequence.num_tokens


class Scheduler:
    """Two queues, `waiting` and `running`."""

    def __init__(self, pool: BlockPool, config: SchedulerConfig | None = None) -> None:
        self.pool = pool
        self.config = config or SchedulerConfig()
        self.waiting: list[Sequence] = []
        """Both by rank: the first goes first."""
        self.running: list[Sequence] = []
        self.num_preemptions = 0
        self.num_cached_tokens = 0
        """Prompt tokens that were found published, over all requests."""
        self.is_short_of_blocks = False
        """In the step that was scheduled last the first of those that wait found no room in the pool."""
        self._num_added = 0

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    @property
    def sequences(self) -> list[Sequence]:
        return [*self.running, *self.waiting]

    def add(self, sequence: Sequence) -> None:
        self._num_added += 1
        sequence.arrival = self._num_added
        insort(self.waiting, sequence, key=_rank)

    def remove(self, sequence: Sequence) -> None:
        """Finished, failed or cancelled: take it out of its queue and free its blocks."""
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        self.pool.free(sequence)
        sequence.status = SequenceStatus.FINISHED

    def schedule(self) -> list[Scheduled]:
        """Choose the next step's work: decodes first, then prefill chunks. Empty: nothing can run now."""
        self.is_short_of_blocks = False
        self._yield_to_priority()
        decodes = self._schedule_decodes()
        budget = self.config.mixed_prefill_tokens if decodes else self.config.prefill_tokens
        batch = decodes + self._schedule_prefills(budget)
        # All but its last token may have been found published: that is one token on a history, too.
        return sorted(batch, key=lambda entry: not entry.is_decode)

    def _yield_to_priority(self) -> None:
        """Preempt running sequences for the first in the queue if it ranks higher, before any is scheduled."""
        first = self.waiting[0] if self.waiting else None
        while (
            first
            and self.running
            and self.running[-1].priority < first.priority
            and not self._has_room(first)
        ):
            self._preempt(self.running[-1])

    def _schedule_decodes(self) -> list[Scheduled]:
        for sequence in list(self.running):
            # It may have been preempted for an older one in this very loop.
            if sequence.status is SequenceStatus.RUNNING and sequence.is_decoding:
                self._make_room(sequence)
        return [Scheduled(seq, seq.num_computed, 1) for seq in self.running if seq.is_decoding]

    def _make_room(self, sequence: Sequence) -> None:
        """Room for the sequence's newest token, at the cost of the youngest if need be."""
        while not self.pool.grow(sequence, sequence.num_tokens):
            victim = self.running[-1]
            self._preempt(victim)
            if victim is sequence:
                return

    def _preempt(self, victim: Sequence) -> None:
        self.running.remove(victim)
        self.pool.free(victim)
        victim.status = SequenceStatus.WAITING
        insort(self.waiting, victim, key=_rank)
        victim.num_preemptions += 1
        self.num_preemptions += 1

    def _schedule_prefills(self, budget: int) -> list[Scheduled]:
        scheduled: list[Scheduled] = []
        for sequence in self.running:
            if budget > 0 and not sequence.is_decoding:
                budget -= self._take_chunk(sequence, budget, scheduled)
        while budget > 0 and self.waiting and self._admit(self.waiting[0]):
            sequence = self.waiting.pop(0)
            insort(self.running, sequence, key=_rank)
            sequence.status = SequenceStatus.RUNNING
            budget -= self._take_chunk(sequence, budget, scheduled)
        return scheduled

    def _admit(self, sequence: Sequence) -> bool:
        if not self._has_room(sequence):
            return False
        # After a preemption it may find what it published itself.
        if not sequence.num_preemptions:
            sequence.num_cached_tokens = sequence.num_computed
            self.num_cached_tokens += sequence.num_cached_tokens
        return True

    def _has_room(self, sequence: Sequence) -> bool:
        """Reserve the prompt's blocks, published ones first, with the horizon's blocks free beside them."""
        if len(self.running) >= self.config.max_num_seqs:
            return False
        self.pool.match(sequence)
        horizon = min(sequence.sampling.max_tokens - sequence.num_output_tokens, self.config.horizon_tokens)
        wanted = self.pool.blocks_for(sequence.num_tokens + horizon) - len(sequence.blocks)
        # Alone it may start without head-room: nobody is there to be preempted for it.
        enough = self.pool.ensure_free(wanted, sequence.tenant) or not self.running
        self.is_short_of_blocks = not (enough and self.pool.grow(sequence, sequence.num_tokens))
        if not self.is_short_of_blocks:
            return True
        # Waiting, it must not keep others from evicting what it has found.
        self.pool.free(sequence)
        return False

    def _take_chunk(self, sequence: Sequence, budget: int, scheduled: list[Scheduled]) -> int:
        count = min(budget, sequence.num_uncomputed)
        scheduled.append(Scheduled(sequence, sequence.num_computed, count))
        return count


_rank = attrgetter("rank")
