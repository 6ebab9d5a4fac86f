"""Which calls are traced, and what is noted of each on the way: cheap enough to do for all of them.

Whether a call is traced whole, its spans at Triton and in the engine included, is decided when it comes: by its
trace id, or because its client asks. Whether it is kept is decided at its end: a call that failed or was slow keeps
the gateway's own spans, within a budget.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from contracts.tracing.context import (
    TRACEPARENT,
    TraceContext,
    is_in_ratio,
    new_span_id,
    new_trace_id,
    parse_traceparent,
)
from contracts.tracing.span import Span
from contracts.tracing.timing import Timing
from gateway.errors import GatewayError

WHOLE_PER_S, WHOLE_BURST = 20.0, 100
"""Calls that are traced whole. This Triton can crash when it exports very many spans (ARCHITECTURE.md, fact 12)."""
KEPT_PER_S, KEPT_BURST = 2.0, 50
"""Calls that are kept because they failed or were slow: when all do, a few of them tell as much."""


class Budget:
    """So many a second, and some more at once. `now_s`: any clock that goes forward."""

    def __init__(self, per_s: float, burst: float, now_s: float) -> None:
        self._per_s = per_s
        self._burst = self._left = burst
        self._at_s = now_s

    def take(self, now_s: float) -> bool:
        self._left = min(self._burst, self._left + (now_s - self._at_s) * self._per_s)
        self._at_s = now_s
        if self._left < 1:
            return False
        self._left -= 1
        return True


@dataclass(slots=True)
class Attempt:
    """One try to get an answer at one endpoint. Times on the monotonic clock; `ended_s` 0: it runs."""

    span_id: str
    traceparent: str
    """For Triton; "": it is not to trace this."""
    endpoint: str
    number: int
    started_s: float
    ended_s: float = 0.0
    error: GatewayError | None = None
    timing: Timing | None = None
    """As the engine told it with the answer."""

    def note(self, timing: Timing) -> None:
        self.timing = timing

    def end(self, error: GatewayError | None = None) -> None:
        """The first one counts."""
        if not self.ended_s:
            self.ended_s = time.monotonic()
            self.error = error


@dataclass(slots=True)
class CallTrace:
    """A call's place in its trace."""

    context: TraceContext
    """Its own span's; sampled: traced whole."""
    parent_id: str = ""
    """The client's span; "": the trace begins here."""
    client_span_id: str = ""
    """Of a client that traces this call not itself: a link, for a parent that nobody exports makes an orphan."""
    kept_because: str = ""
    is_part: bool = False
    """Of another call, which decides what is kept."""
    attempts: list[Attempt] = field(default_factory=list)

    def begin_attempt(self, endpoint: str, number: int) -> Attempt:
        span_id = new_span_id()
        context = self.context
        header = TraceContext(context.trace_id, span_id, True).header if context.is_sampled else ""
        attempt = Attempt(span_id, header, endpoint, number, time.monotonic())
        self.attempts.append(attempt)
        return attempt

    def part(self) -> CallTrace:
        """Of a call that is made on this one's behalf."""
        context = TraceContext(self.context.trace_id, new_span_id(), self.context.is_sampled)
        return CallTrace(context, self.context.span_id, kept_because=self.kept_because, is_part=True)


_NOT_BEGUN = TraceContext("0" * 32, "0" * 16, False)
"""Ids cost a system call each, and every call gets its own when it begins."""


def untraced() -> CallTrace:
    """Until `Tracer.begin`: no id of it is ever shown."""
    return CallTrace(_NOT_BEGUN)


class Sender(Protocol):
    """`contracts.tracing.sending.SpanSender` is one."""

    def send(self, spans: Sequence[Span]) -> None: ...


class Tracer:
    """Decides for every call, at its beginning and at its end."""

    def __init__(self, sender: Sender | None, ratio: float = 0.0, slow_s: float = 5.0) -> None:
        """`sender` None: nothing is traced."""
        self._sender = sender
        self._ratio = ratio
        self._slow_s = slow_s
        self._whole = Budget(WHOLE_PER_S, WHOLE_BURST, time.monotonic())
        self._kept = Budget(KEPT_PER_S, KEPT_BURST, time.monotonic())

    def begin(self, headers: Mapping[str, str]) -> CallTrace:
        given = parse_traceparent(headers.get(TRACEPARENT))
        trace_id = given.trace_id if given else new_trace_id()
        because = self._why_whole(given, trace_id)
        context = TraceContext(trace_id, new_span_id(), bool(because))
        if given is None:
            return CallTrace(context, kept_because=because)
        if given.is_sampled:
            return CallTrace(context, given.span_id, kept_because=because)
        return CallTrace(context, client_span_id=given.span_id)

    def _why_whole(self, given: TraceContext | None, trace_id: str) -> str:
        """ "": it is not traced whole. A client that traces and says no for this call is not overruled."""
        if self._sender is None or (given is not None and not given.is_sampled):
            return ""
        because = "asked" if given else "ratio" if is_in_ratio(trace_id, self._ratio) else ""
        return because if because and self._whole.take(time.monotonic()) else ""

    def keeps(self, trace: CallTrace, *, has_failed: bool, took_s: float) -> bool:
        """At the call's end; sets `kept_because`. `took_s`: of a stream, until its first text."""
        if self._sender is None or trace.kept_because or trace.is_part:
            return bool(trace.kept_because)
        because = "error" if has_failed else "slow" if took_s >= self._slow_s else ""
        if because and self._kept.take(time.monotonic()):
            trace.kept_because = because
        return bool(trace.kept_because)

    def send(self, spans: Sequence[Span]) -> None:
        if self._sender is not None:
            self._sender.send(spans)
