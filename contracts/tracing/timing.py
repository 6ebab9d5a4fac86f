"""Where one request's time went in the engine: as the worker tells it, and as spans."""

from __future__ import annotations

import msgspec

from contracts.tracing import names
from contracts.tracing.context import new_span_id
from contracts.tracing.span import Event, Span, SpanKind, Value, unix_ns

RETURN_TIMING_PARAMETER = "return_timing"
"""Of a request: its last response shall bring the timing as the output `timing` (JSON)."""
TIMING_OUTPUT = "timing"


class PhaseFigures(msgspec.Struct, frozen=True, array_like=True):
    """Of the steps that one request took part in, in prefill or in decode."""

    num_steps: int
    num_tokens: int
    """Of this request, computed in them."""
    mean_batch: float
    """Sequences in a step."""
    max_batch: int
    num_blocks: int
    """KV blocks that it held after the last of them."""


class TimingEvent(msgspec.Struct, frozen=True, array_like=True):
    at_unix_s: float
    name: str
    figures: dict[str, int]


class Timing(msgspec.Struct, frozen=True, array_like=True):
    """Where one request's time went in the engine. Unix seconds; 0.0: it did not come so far."""

    accepted_unix_s: float
    started_unix_s: float
    """Of its first step."""
    first_token_unix_s: float
    ended_unix_s: float
    num_ahead: int
    """Requests that waited when it came."""
    num_cached_tokens: int
    num_preemptions: int
    num_output_tokens: int
    prefill: PhaseFigures
    decode: PhaseFigures
    """From the first token on."""
    events: list[TimingEvent] = []
    num_short_steps: int = 0
    """Steps that it waited through while the pool had no room for the first in the queue."""

    @property
    def queue_s(self) -> float:
        """Until its first step, or its end."""
        return (self.started_unix_s or self.ended_unix_s) - self.accepted_unix_s


_decoder = msgspec.json.Decoder(Timing)


def encode_timing(timing: Timing) -> bytes:
    return msgspec.json.encode(timing)


def decode_timing(raw: bytes) -> Timing:
    """Raises ValueError."""
    try:
        return _decoder.decode(raw)
    except msgspec.MsgspecError as exc:
        raise ValueError(f"no timing: {exc}") from exc


def engine_spans(timing: Timing, trace_id: str, parent_id: str) -> list[Span]:
    """queue, prefill and decode, as far as the request came."""
    started = timing.started_unix_s or timing.ended_unix_s
    queue = engine_span(
        names.QUEUE,
        trace_id,
        parent_id,
        (timing.accepted_unix_s, started),
        {
            names.NUM_AHEAD: timing.num_ahead,
            names.NUM_SHORT_STEPS: timing.num_short_steps,
            names.CACHE_READ_TOKENS: timing.num_cached_tokens,
        },
    )
    if not timing.started_unix_s:
        return [queue]
    first_token = timing.first_token_unix_s or timing.ended_unix_s
    prefill = engine_span(
        names.PREFILL,
        trace_id,
        parent_id,
        (started, first_token),
        _figures(timing.prefill)
        | {
            names.COMPUTED_TOKENS: timing.prefill.num_tokens,
            names.CACHE_READ_TOKENS: timing.num_cached_tokens,
        },
    )
    if not timing.first_token_unix_s:
        return [queue, prefill]
    events = [Event(unix_ns(event.at_unix_s), event.name, dict(event.figures)) for event in timing.events]
    decode = engine_span(
        names.DECODE,
        trace_id,
        parent_id,
        (first_token, timing.ended_unix_s),
        # Its first token is prefill's.
        _figures(timing.decode)
        | {names.OUTPUT_TOKENS: timing.num_output_tokens, names.NUM_PREEMPTIONS: timing.num_preemptions},
        events,
    )
    return [queue, prefill, decode]


def _figures(phase: PhaseFigures) -> dict[str, Value]:
    return {
        names.NUM_STEPS: phase.num_steps,
        names.BATCH_SIZE: round(phase.mean_batch, 2),
        names.MAX_BATCH_SIZE: phase.max_batch,
        names.KV_BLOCKS: phase.num_blocks,
    }


def engine_span(
    name: str,
    trace_id: str,
    parent_id: str,
    at_unix_s: tuple[float, float],
    attributes: dict[str, Value],
    events: list[Event] | None = None,
) -> Span:
    return Span(
        service=names.WORKER,
        trace_id=trace_id,
        span_id=new_span_id(),
        parent_id=parent_id,
        name=name,
        kind=SpanKind.INTERNAL,
        start_unix_ns=unix_ns(at_unix_s[0]),
        end_unix_ns=unix_ns(at_unix_s[1]),
        attributes=attributes,
        events=events or [],
    )
