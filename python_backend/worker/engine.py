"""Continuous batching: requests join and leave at every step.

`step()` is schedule -> run -> postprocess. One thread, no sockets: the process around it is `process.py`.
Every accepted request gets exactly one last delta: finished, cancelled, expired or failed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
from torch import Tensor

from contracts.prompts import without_double_start
from contracts.sampling import SamplingParams
from contracts.tracing.timing import Timing
from python_backend.messages import Delta, ErrorCode
from python_backend.worker.blocks import BlockPool
from python_backend.worker.detokenizer import Decoder, TokenTexts
from python_backend.worker.errors import RequestRefused
from python_backend.worker.grammar import Grammars
from python_backend.worker.metrics import StepMetrics
from python_backend.worker.output import Output, OutputLimits
from python_backend.worker.sampler import Choice, Sampler
from python_backend.worker.scheduler import Scheduled, Scheduler, SchedulerConfig
from python_backend.worker.sequence import Sequence
from python_backend.worker.timeline import Timeline

STUCK_TIMEOUT_S = 30.0
"""So long nothing of this worker may run because others hold the pool; then the next request gets an error."""


SURPLUS_BLOCKS = 16
"""A busy worker keeps this many free blocks beside one per running sequence."""


class Runner(Protocol):
    """Computes what was scheduled; returns logits [entries that sample, vocabulary]."""

    def run(self, batch: list[Scheduled]) -> Tensor: ...


class Encoding(Protocol):
    @property
    def ids(self) -> list[int]: ...


class Tokenizer(Decoder, Protocol):
    """What is needed of `tokenizers.Tokenizer`."""

    def encode(self, sequence: str) -> Encoding: ...


@dataclass(frozen=True)
class EngineConfig:
    eos_token_ids: frozenset[int]
    max_context_tokens: int
    total_blocks: int
    """Blocks in the whole arena: what needs more can never run."""
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    max_output_tokens: int = 0
    """Of one request; 0: no limit but the context."""
    vocabulary_size: int | None = None
    """Of the model's output; a request that names tokens beyond it is refused."""


@dataclass
class _Stream:
    """A sequence and its way to text."""

    sequence: Sequence
    output: Output


class Engine:
    """The requests of one instance."""

    def __init__(
        self,
        config: EngineConfig,
        tokenizer: Tokenizer,
        runner: Runner,
        pool: BlockPool,
        grammars: Grammars | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Without `grammars` requests for guided output are refused."""
        self._config = config
        self._clock = clock
        self._tokenizer = tokenizer
        self._runner = runner
        self._pool = pool
        self._limits = OutputLimits(config.eos_token_ids, config.max_context_tokens, config.max_output_tokens)
        self._sampler = Sampler(config.eos_token_ids, config.vocabulary_size, grammars)
        self._token_texts = TokenTexts(tokenizer)
        self._start_ids = tokenizer.encode("").ids
        self._streams: dict[int, _Stream] = {}
        self.scheduler = Scheduler(pool, config.scheduler)
        self.num_steps = 0
        self.num_tokens_out = 0
        self.last_step: StepMetrics | None = None
        self._stuck_since_unix_s: float | None = None
        self.on_tokens: Callable[[int, list[int]], None] | None = None
        """For tests and tools: called with (request id, all output tokens) when a request ends."""

    @property
    def has_work(self) -> bool:
        return bool(self._streams)

    def add(
        self,
        request_id: int,
        prompt: str,
        sampling: SamplingParams,
        deadline_unix_s: float | None = None,
        *,
        tenant: str = "",
        priority: int = 0,
        is_traced: bool = False,
    ) -> None:
        """Accept a request; its deltas come out of `step`. Raises RequestRefused."""
        tokens = list(without_double_start(self._tokenizer.encode(prompt).ids, self._start_ids))
        self._check(tokens)
        sequence = Sequence(
            request_id,
            tokens,
            len(tokens),
            sampling,
            deadline_unix_s,
            tenant=tenant,
            priority=priority,
            timeline=Timeline(self._clock(), len(self.scheduler.waiting), is_traced),
        )
        self._sampler.add(sequence)
        self._streams[request_id] = _Stream(
            sequence, Output(sequence, self._tokenizer, self._limits, self._token_texts)
        )
        self.scheduler.add(sequence)

    def _check(self, tokens: list[int]) -> None:
        limit = self._config.max_context_tokens
        if not tokens:
            raise RequestRefused("INVALID_ARGUMENT", "the prompt is empty: 0 tokens")
        if len(tokens) >= limit:
            raise RequestRefused(
                "INVALID_ARGUMENT",
                f"the prompt has {len(tokens)} tokens; with one token to generate, {limit - 1} fit the model's "
                f"context of {limit}",
            )
        needed = self._pool.blocks_for(len(tokens) + 1)
        if needed > self._config.total_blocks:
            raise RequestRefused(
                "INVALID_ARGUMENT",
                f"the prompt needs {needed} KV blocks, the pool has {self._config.total_blocks}; raise pool_bytes",
            )

    def cancel(self, request_id: int) -> Delta | None:
        """Stop a request at once; its last delta. None: it has ended already."""
        if request_id not in self._streams:
            return None
        return self._fail(request_id, "CANCELLED", "cancelled by the client")

    def step(self, now_unix_s: float) -> list[Delta]:
        """Run every scheduled sequence one token or chunk further."""
        deltas = self._drop_expired(now_unix_s)
        before = self.scheduler.num_cached_tokens, self.scheduler.num_preemptions, time.perf_counter()
        batch = self.scheduler.schedule()
        if self.scheduler.num_preemptions > before[1]:
            self._note_preemptions()
        if self.scheduler.is_short_of_blocks:
            for sequence in self.scheduler.waiting:
                sequence.timeline.waited_for_blocks()
        if not batch:
            return deltas + self._fail_stuck(now_unix_s)
        self._stuck_since_unix_s = None
        began_unix_s = self._clock()
        logits = self._runner.run(batch)
        self.num_steps += 1
        for entry in batch:
            entry.sequence.num_computed = entry.start + entry.count
        self._pool.publish(entry.sequence for entry in batch)
        deltas += self._postprocess(batch, logits, began_unix_s)
        self.last_step = self._measured(batch, *before)
        return deltas

    @property
    def num_leased_blocks(self) -> int:
        return self._pool.num_leased

    def counters(self) -> dict[str, int]:
        """The worker's words on the board, by name."""
        return {
            "running": len(self.scheduler.running),
            "waiting": len(self.scheduler.waiting),
            "blocks_used": self._pool.num_used,
            "blocks_leased": self._pool.num_leased,
            "tokens_out": self.num_tokens_out,
            "preemptions": self.scheduler.num_preemptions,
            "cached_tokens": self.scheduler.num_cached_tokens,
        }

    def trim(self) -> None:
        """Nothing runs: give unused blocks back to the node, check that none is lost."""
        self._pool.check(self.scheduler.sequences)
        self._pool.give_back_unused()

    def give_back_surplus(self) -> None:
        """What runs now may need a little more soon; what is free beyond that, others may need now."""
        self._pool.give_back_unused(keep=SURPLUS_BLOCKS + len(self.scheduler.running))

    def give_back_unused(self) -> None:
        """Somebody else is short."""
        self._pool.give_back_unused()

    def _measured(
        self, batch: list[Scheduled], cached_before: int, preempted_before: int, started_s: float
    ) -> StepMetrics:
        num_decodes = sum(entry.is_decode for entry in batch)
        return StepMetrics(
            num_decodes=num_decodes,
            num_prefill_tokens=sum(entry.count for entry in batch) - num_decodes,
            num_cached_tokens=self.scheduler.num_cached_tokens - cached_before,
            num_preempted=self.scheduler.num_preemptions - preempted_before,
            num_running=len(self.scheduler.running),
            num_waiting=len(self.scheduler.waiting),
            duration_s=time.perf_counter() - started_s,
        )

    def _drop_expired(self, now_unix_s: float) -> list[Delta]:
        expired = [s.request_id for s in self.scheduler.sequences if s.is_expired(now_unix_s)]
        return [
            self._fail(request_id, "DEADLINE_EXCEEDED", "the request's deadline passed")
            for request_id in expired
        ]

    def _fail_stuck(self, now_unix_s: float) -> list[Delta]:
        """Nothing fits. What the whole arena cannot hold ends here, others wait for room, but not for ever."""
        if not self.scheduler.waiting:
            return []
        self._pool.give_back_unused()
        since = self._stuck_since_unix_s = self._stuck_since_unix_s or now_unix_s
        sequence = self.scheduler.waiting[0]
        blocks = self._pool.blocks_for(sequence.num_tokens)
        if blocks > self._config.total_blocks:
            text = (
                f"the sequence grew to {sequence.num_tokens} tokens, more than the KV pool's "
                f"{self._config.total_blocks * self._pool.block_tokens}; raise pool_bytes or lower max_tokens"
            )
        elif now_unix_s - since >= STUCK_TIMEOUT_S:
            text = (
                f"the KV pool had no {blocks} blocks for {sequence.num_tokens} tokens within "
                f"{STUCK_TIMEOUT_S:.0f} s: others hold it; try again, raise pool_bytes or a ceiling"
            )
        else:
            return []
        return [self._fail(sequence.request_id, "UNAVAILABLE", text)]

    def _note_preemptions(self) -> None:
        for sequence in self.scheduler.waiting:
            if sequence.num_preemptions > sequence.timeline.num_preemptions:
                sequence.timeline.preempted(self._clock())

    def _note_step(self, batch: list[Scheduled], began_unix_s: float) -> None:
        ended_unix_s = self._clock()
        for entry in batch:
            sequence = entry.sequence
            sequence.timeline.stepped(
                began_unix_s,
                ended_unix_s,
                num_tokens=entry.count,
                batch_size=len(batch),
                num_blocks=len(sequence.blocks),
                num_output_tokens=sequence.num_output_tokens + entry.samples,
            )

    def _postprocess(self, batch: list[Scheduled], logits: Tensor, began_unix_s: float) -> list[Delta]:
        sampled = [entry.sequence for entry in batch if entry.samples]
        choices = self._sampler.choose(logits, sampled)
        self._note_step(batch, began_unix_s)
        self.num_tokens_out += len(choices)
        return [
            self._advance(sequence, choice)
            if isinstance(choice, Choice)
            else self._fail(sequence.request_id, choice.code, str(choice))
            for sequence, choice in zip(sampled, choices, strict=True)
        ]

    def _advance(self, sequence: Sequence, choice: Choice) -> Delta:
        delta = self._streams[sequence.request_id].output.push(choice)
        if delta.finish_reason is None:
            return delta
        self._end(sequence)
        return msgspec.structs.replace(delta, timing=self._timing(sequence))

    def _fail(self, request_id: int, code: ErrorCode, message: str) -> Delta:
        sequence = self._streams[request_id].sequence
        self._end(sequence)
        return Delta(
            request_id,
            "",
            0,
            num_input_tokens=sequence.num_prompt_tokens,
            error_code=code,
            error=message,
            timing=self._timing(sequence),
        )

    def _timing(self, sequence: Sequence) -> Timing:
        return sequence.timeline.ended(
            self._clock(),
            num_cached_tokens=sequence.num_cached_tokens,
            num_output_tokens=sequence.num_output_tokens,
        )

    def _end(self, sequence: Sequence) -> None:
        if self.on_tokens is not None:
            self.on_tokens(sequence.request_id, sequence.tokens[sequence.num_prompt_tokens :])
        self.scheduler.remove(sequence)
        self._sampler.remove(sequence.request_id)
        del self._streams[sequence.request_id]
