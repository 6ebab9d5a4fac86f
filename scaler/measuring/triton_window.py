"""A model whose work Triton sees: its counters and its pending requests over the last seconds. Pure."""

from __future__ import annotations

import math

from scaler.measuring.figures import UNKNOWN, Figure, Look, Spans
from scaler.measuring.window import Counters, Gauge, Rise


class TritonWindow:
    """A model whose work Triton sees."""

    def __init__(self, spans: Spans) -> None:
        self._spans = spans
        self._counters = Counters(spans.longest_s, max_gap_s=2 * spans.utilization_s)
        self._pending = Gauge(spans.longest_s)

    def take(self, look: Look) -> bool:
        if look.pending is not None:
            self._pending.add(look.at_s, look.pending)
        return look.counters is not None and not self._counters.add(look.at_s, look.counters)

    def busy(self, num_ready: int) -> Figure:
        """Instances at work, mean over the window."""
        rise = self._rise()
        if rise is None:
            return UNKNOWN
        if rise["executions"] == 0 and (self._pending.lowest(rise.seconds) or 0) > 0:
            # Requests waited all the time and no execution ended: every instance is inside a long one.
            return Figure(float(num_ready), rise.ends_s)
        return Figure(rise.per_s("busy_s"), rise.ends_s)

    def queue(self, has_pending: bool) -> Figure:
        """Without a metrics endpoint: by Little's law, of the requests that were answered, so a little late."""
        if has_pending:
            return self._pending_mean(self._spans.queue_s)
        rise = self._counters.over(self._spans.queue_s)
        return Figure(rise.per_s("queue_s"), rise.ends_s) if rise else UNKNOWN

    def queue_time_s(self) -> Figure:
        rise = self._counters.over(self._spans.queue_s)
        if rise is None:
            return UNKNOWN
        if rise["left_queue"] == 0 and (self._pending.lowest(rise.seconds) or 0) > 0:
            since_s = self._counters.still_since_s("left_queue")
            return Figure(rise.ends_s - (rise.ends_s if since_s is None else since_s), rise.ends_s)
        return Figure(rise.ratio("queue_s", "left_queue"), rise.ends_s)

    def concurrency(self, has_pending: bool) -> Figure:
        rise = self._rise()
        if rise is None:
            return UNKNOWN
        executing = rise.per_s("executing_s")
        if not has_pending:
            return Figure(executing + rise.per_s("queue_s"), rise.ends_s)
        pending = self._pending_mean(self._spans.utilization_s)
        if pending.value is None:
            return UNKNOWN
        return Figure(executing + pending.value, min(rise.ends_s, pending.at_s))

    def arrivals_per_s(self) -> Figure:
        """Answered, and what the queue grew by."""
        rise = self._rise()
        if rise is None:
            return UNKNOWN
        grown = self._pending.change(rise.seconds)
        return Figure(max(0.0, rise["requests"] + grown) / rise.seconds, rise.ends_s)

    def busy_s_per_request(self, num_ready: int) -> Figure:
        rise = self._rise()
        return Figure(rise.ratio("busy_s", "requests"), rise.ends_s) if rise else UNKNOWN

    def _rise(self) -> Rise | None:
        """Over `utilization_s`, or long enough for some executions when those are long."""
        spans = self._spans
        longest = self._counters.over(spans.longest_s)
        if longest is None:
            return None
        execution_s = longest.ratio("busy_s", "executions")
        span_s = spans.utilization_s
        if not math.isnan(execution_s):
            span_s = min(spans.longest_s, max(span_s, spans.num_executions * execution_s))
        return self._counters.over(span_s)

    def _pending_mean(self, seconds: float) -> Figure:
        return Figure(self._pending.mean(seconds), self._pending.newest_s or 0.0)
