"""Which sequences run in the next step, and how many tokens of each. Pure: no tensors, no clock, no sockets.

Decodes go first (one token each); what is left of the token budget goes to prefill chunks, oldest first.
A decode that finds no block preempts the youngest running sequence, which is recomputed later.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

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
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.num_preemptions = 0

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    @property
    def sequences(self) -> list[Sequence]:
        return [*self.running, *self.waiting]

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

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
        decodes = self._schedule_decodes()
        budget = self.config.mixed_prefill_tokens if decodes else self.config.prefill_tokens
        return decodes + self._schedule_prefills(budget)

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
        self.waiting.appendleft(victim)
        self.num_preemptions += 1

    def _schedule_prefills(self, budget: int) -> list[Scheduled]:
        scheduled: list[Scheduled] = []
        for sequence in self.running:
            if budget > 0 and not sequence.is_decoding:
                budget -= self._take_chunk(sequence, budget, scheduled)
        while budget > 0 and self.waiting and len(self.running) < self.config.max_num_seqs:
            sequence = self.waiting[0]
            if not self._admit(sequence):
                break
            self.waiting.popleft()
            self.running.append(sequence)
            sequence.status = SequenceStatus.RUNNING
            budget -= self._take_chunk(sequence, budget, scheduled)
        return scheduled

    def _admit(self, sequence: Sequence) -> bool:
        """Reserve the prompt's blocks, with the horizon's blocks free beside them."""
        horizon = min(sequence.sampling.max_tokens - sequence.num_output_tokens, self.config.horizon_tokens)
        wanted = self.pool.blocks_for(sequence.num_tokens + horizon)
        # Alone it may start without head-room: nobody is there to be preempted for it.
        enough = self.pool.ensure_free(wanted) or not self.running
        return enough and self.pool.grow(sequence, sequence.num_tokens)

    def _take_chunk(self, sequence: Sequence, budget: int, scheduled: list[Scheduled]) -> int:
        count = min(budget, sequence.num_uncomputed)
        scheduled.append(Scheduled(sequence, sequence.num_computed, count))
        return count
