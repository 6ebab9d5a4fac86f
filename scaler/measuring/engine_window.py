"""A generate model of ours over the last seconds: its requests leave Triton at once; the node knows them. Pure."""

from __future__ import annotations

import math

from scaler.measuring.engine_figures import EngineFigures, Incarnation
from scaler.measuring.figures import UNKNOWN, Figure, Spans
from scaler.measuring.window import Counters, Gauge, SumOfCounters


class EngineWindow:
    """A generate model of ours: its requests leave Triton at once, and the node knows them."""

    def __init__(self, spans: Spans) -> None:
        self._spans = spans
        self._landed = Counters(spans.utilization_s, max_gap_s=2 * spans.utilization_s)
        self._landed_sum = SumOfCounters[Incarnation]()
        self._busy = Gauge(spans.utilization_s)
        self._pending = Gauge(spans.utilization_s)
        self._waiting = Gauge(spans.queue_s)
        self._in_flight = Gauge(spans.utilization_s)
        self._kv = Gauge(spans.queue_s)
        self._num_refused: int | None = None

    def take(self, at_s: float, engine: EngineFigures, pending: float | None) -> None:
        self._busy.add(at_s, engine.busy_instances)
        self._waiting.add(at_s, engine.num_waiting)
        self._in_flight.add(at_s, engine.num_in_flight)
        self._landed.add(at_s, {"landed": self._landed_sum.update(engine.landed)})
        if pending is not None:
            self._pending.add(at_s, pending)
        if engine.kv_occupancy is not None:
            # A lease that was refused since the last look: for a moment there was nothing left to have.
            was_refused = self._num_refused is not None and engine.num_refused > self._num_refused
            self._kv.add(at_s, 1.0 if was_refused else engine.kv_occupancy)
        self._num_refused = engine.num_refused

    def busy(self, num_ready: int) -> Figure:
        return self._mean(self._busy, self._spans.utilization_s)

    def queue(self, has_pending: bool) -> Figure:
        waiting = self._mean(self._waiting, self._spans.queue_s)
        return self._with_pending(waiting, self._spans.queue_s) if has_pending else waiting

    def queue_time_s(self) -> Figure:
        """Little's law: the mean queue over the rate at which requests land."""
        rise = self._landed.over(self._spans.queue_s)
        queue = self.queue(has_pending=self._pending.newest_s is not None)
        if rise is None or queue.value is None:
            return UNKNOWN
        if rise["landed"] > 0:
            return Figure(queue.value / rise.per_s("landed"), rise.ends_s)
        since_s = self._landed.still_since_s("landed")
        if queue.value > 0 and since_s is not None:
            return Figure(rise.ends_s - since_s, rise.ends_s)
        return Figure(math.nan, rise.ends_s)

    def concurrency(self, has_pending: bool) -> Figure:
        in_flight = self._mean(self._in_flight, self._spans.utilization_s)
        return self._with_pending(in_flight, self._spans.utilization_s) if has_pending else in_flight

    def arrivals_per_s(self) -> Figure:
        rise = self._landed.over(self._spans.utilization_s)
        if rise is None:
            return UNKNOWN
        grown = self._pending.change(rise.seconds)
        return Figure(max(0.0, rise["landed"] + grown) / rise.seconds, rise.ends_s)

    def busy_s_per_request(self, num_ready: int) -> Figure:
        """How long a request holds its place, as a share of an instance.

        Not known before the places have been taken once over within the window: 64 long streams and one that landed
        would say that each costs what all together do.
        """
        rise = self._landed.over(self._spans.utilization_s)
        busy = self._busy.mean(self._spans.utilization_s)
        in_flight = self._in_flight.mean(self._spans.utilization_s)
        if rise is None or busy is None or in_flight is None or rise["landed"] < in_flight:
            return UNKNOWN
        return Figure(busy / rise.per_s("landed") if rise["landed"] else math.nan, rise.ends_s)

    def kv_occupancy(self) -> Figure:
        return Figure(self._kv.highest(self._spans.queue_s), self._kv.newest_s or 0.0)

    def _mean(self, gauge: Gauge, seconds: float) -> Figure:
        return Figure(gauge.mean(seconds), gauge.newest_s or 0.0)

    def _with_pending(self, figure: Figure, seconds: float) -> Figure:
        pending = self._mean(self._pending, seconds)
        if figure.value is None or pending.value is None:
            return UNKNOWN
        return Figure(figure.value + pending.value, min(figure.at_s, pending.at_s))
