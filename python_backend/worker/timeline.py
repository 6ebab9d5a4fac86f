"""Where one request's time goes in the engine: noted at each step, told once, with the request's last delta."""

from __future__ import annotations

from dataclasses import dataclass, field

from contracts.tracing.timing import PhaseFigures, Timing, TimingEvent

MAX_EVENTS = 64


@dataclass
class _Phase:
    """Sums over the steps of prefill, or of decode."""

    num_steps: int = 0
    num_tokens: int = 0
    sum_batch: int = 0
    max_batch: int = 0
    num_blocks: int = 0

    def add(self, num_tokens: int, batch_size: int, num_blocks: int) -> None:
        self.num_steps += 1
        self.num_tokens += num_tokens
        self.sum_batch += batch_size
        self.max_batch = max(self.max_batch, batch_size)
        self.num_blocks = num_blocks

    def figures(self) -> PhaseFigures:
        mean = self.sum_batch / self.num_steps if self.num_steps else 0.0
        return PhaseFigures(self.num_steps, self.num_tokens, mean, self.max_batch, self.num_blocks)


@dataclass
class Timeline:
    """Of one sequence; times in Unix seconds. `is_traced`: moments within the phases are wanted too."""

    accepted_unix_s: float
    num_ahead: int
    is_traced: bool = False
    started_unix_s: float = 0.0
    first_token_unix_s: float = 0.0
    num_preemptions: int = 0
    num_short_steps: int = 0
    _prefill: _Phase = field(default_factory=_Phase)
    _decode: _Phase = field(default_factory=_Phase)
    _events: list[TimingEvent] = field(default_factory=list)

    def waited_for_blocks(self) -> None:
        """A step went by in which the pool had no room for the first in the queue."""
        if not self.started_unix_s:
            self.num_short_steps += 1

    def preempted(self, at_unix_s: float) -> None:
        self.num_preemptions += 1
        self._note("preempted", at_unix_s, {})

    def stepped(
        self,
        began_unix_s: float,
        ended_unix_s: float,
        *,
        num_tokens: int,
        batch_size: int,
        num_blocks: int,
        num_output_tokens: int,
    ) -> None:
        """One step ran `num_tokens` of it; `num_output_tokens` of them all are there now."""
        if not self.started_unix_s:
            self.started_unix_s = began_unix_s
        # The step that makes the first token belongs to prefill; a recomputation after a preemption to decode.
        phase = self._decode if self.first_token_unix_s else self._prefill
        phase.add(num_tokens, batch_size, num_blocks)
        if num_output_tokens and not self.first_token_unix_s:
            self.first_token_unix_s = ended_unix_s
        if self.is_traced and num_output_tokens and num_output_tokens & (num_output_tokens - 1) == 0:
            self._note(
                "tokens",
                ended_unix_s,
                {"tokens": num_output_tokens, "batch": batch_size, "blocks": num_blocks},
            )

    def ended(self, at_unix_s: float, *, num_cached_tokens: int, num_output_tokens: int) -> Timing:
        return Timing(
            self.accepted_unix_s,
            self.started_unix_s,
            self.first_token_unix_s,
            at_unix_s,
            num_ahead=self.num_ahead,
            num_cached_tokens=num_cached_tokens,
            num_preemptions=self.num_preemptions,
            num_output_tokens=num_output_tokens,
            prefill=self._prefill.figures(),
            decode=self._decode.figures(),
            events=self._events,
            num_short_steps=self.num_short_steps,
        )

    def _note(self, name: str, at_unix_s: float, figures: dict[str, int]) -> None:
        if self.is_traced and len(self._events) < MAX_EVENTS:
            self._events.append(TimingEvent(at_unix_s, name, figures))
