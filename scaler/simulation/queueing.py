"""What instances make of the load: a queue before a number of them, in two forms.

`FluidQueue` treats requests as a fluid. It is right for many requests a second and quick enough for weeks, but
knows no chance: a fleet that is 99 % busy has no queue in it. `ArrivalQueue` replays each request before a FIFO
queue with many servers; for bursts that is the honest one. `queue_for` picks by whether the trace has the requests'
moments.

`Capacity.for_peak` sets what an instance does, so that the peak minute needs so many instances at a utilisation of
70 %: with ten that is "static-10", which costs are compared with.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from scaler.simulation.traces import Floats, Trace

PEAK_INSTANCES = 10
SIZED_UTILIZATION = 0.70
SAMPLES_PER_TICK = 4
"""Of the fluid's waiting times: the share within 5 s is exact to a quarter of a tick's requests."""


@dataclass(frozen=True)
class Capacity:
    """One instance."""

    per_s: float
    """Requests per second when it has work all the time."""
    batch_gain: float = 1.0
    """How many times what it does one request at a time it does in full batches, `per_s` being the latter. Batches
    grow only when it is always busy, so above 1 utilisation reads 100 % before `per_s` is reached. Fluid only."""

    @classmethod
    def for_peak(
        cls, trace: Trace, peak_instances: float = PEAK_INSTANCES, batch_gain: float = 1.0
    ) -> Capacity:
        """The trace's busiest minute needs exactly so many at 70 %."""
        return cls(trace.peak_per_s() / (peak_instances * SIZED_UTILIZATION), batch_gain)

    def needed(self, per_s: float) -> int:
        """Instances for that rate at 70 %; 9.9999999 of them are ten, 10.0000001 as well."""
        return max(1, math.ceil(per_s / (self.per_s * SIZED_UTILIZATION) - 1e-6))


class Served(NamedTuple):
    """What happened in one tick."""

    arrived: float
    started: float
    """Requests that left the queue."""
    queued_s: float
    """Seconds that requests spent in the queue within the tick, summed."""
    busy_s: float
    """Instance-seconds of work."""
    queue: float
    """Requests that wait at its end."""


@dataclass(frozen=True)
class Waits:
    """Waiting times, each for `weights` requests that came at `at_s`; infinite for those never served."""

    at_s: Floats
    waits_s: Floats
    weights: Floats


class Queue(Protocol):
    """Time moves by `advance` alone."""

    def resize(self, num_serving: int, now: float) -> Sequence[float]:
        """From now on so many serve. For each one fewer: when it has finished what it had."""

    def advance(self) -> Served:
        """Serve through the next tick."""

    def waits(self) -> Waits:
        """After the last tick; who still waits is served by the instances that are left."""


class FluidQueue:
    """The load as a fluid."""

    def __init__(self, arrived: Floats, tick_s: float, capacity: Capacity) -> None:
        self._arrived: list[float] = arrived.tolist()
        self._tick_s = tick_s
        self._one_per_tick = capacity.per_s * tick_s
        self._busy_s_per_request = capacity.batch_gain / capacity.per_s
        self._service_s = 1.0 / capacity.per_s
        self._num_serving = 0
        self._room = 0.0
        self._queue = 0.0
        self._started: list[float] = []
        self._rooms: list[float] = []

    def resize(self, num_serving: int, now: float) -> Sequence[float]:
        fewer = self._num_serving - num_serving
        self._num_serving = num_serving
        self._room = num_serving * self._one_per_tick
        return [now + self._service_s] * fewer

    def advance(self) -> Served:
        arrived = self._arrived[len(self._started)]
        before, room = self._queue, self._room
        left = before + arrived - room
        if left > 0.0:
            started = room
            self._queue = left
        else:
            started = before + arrived
            left = self._queue = 0.0
        self._started.append(started)
        self._rooms.append(room)
        busy_s = min(started * self._busy_s_per_request, self._num_serving * self._tick_s)
        return Served(arrived, started, 0.5 * (before + left) * self._tick_s, busy_s, left)

    def waits(self) -> Waits:
        """A request that comes as the n-th starts when the n-th start happens: the gap between the two curves."""
        tick_s = self._tick_s
        arrived, started, rooms = (np.array(x) for x in (self._arrived, self._started, self._rooms))
        come = np.concatenate(([0.0], np.cumsum(arrived)))
        gone = np.concatenate(([0.0], np.cumsum(started)))
        queue = np.maximum(0.0, come - gone)
        starts_s = np.arange(len(arrived)) * tick_s
        # Within a tick the queue may run empty: until then starts go at full rate, after that as requests come.
        spare = np.where(rooms > arrived, rooms - arrived, np.inf)
        empty_after = np.clip(queue[:-1] / spare, 0.0, 1.0)
        is_kink = (queue[:-1] > 0) & (queue[1:] <= 1e-9 * come[-1])
        kink = np.where(is_kink, empty_after, 1.0)
        times_s = np.stack((starts_s, starts_s + kink * tick_s), axis=1).ravel()
        curve = np.stack((gone[:-1], np.where(is_kink, gone[:-1] + kink * rooms, gone[1:])), axis=1).ravel()
        end_s = len(arrived) * tick_s
        last_s = end_s + self._queue / self._num_serving * self._service_s if self._num_serving else math.inf
        times_s, curve = np.append(times_s, (end_s, last_s)), np.append(curve, (gone[-1], come[-1]))
        parts = (np.arange(SAMPLES_PER_TICK) + 0.5) / SAMPLES_PER_TICK
        at_s = (starts_s[:, None] + parts * tick_s).ravel()
        nth = (come[:-1, None] + parts * arrived[:, None]).ravel()
        waits_s = np.interp(nth, curve, times_s) - at_s
        if not self._num_serving:
            waits_s[nth > gone[-1]] = math.inf
        return Waits(at_s, np.maximum(0.0, waits_s), np.repeat(arrived / SAMPLES_PER_TICK, SAMPLES_PER_TICK))


class ArrivalQueue:
    """Each request for itself: first come, first served, a constant service time."""

    def __init__(self, arrivals_s: Floats, tick_s: float, capacity: Capacity) -> None:
        self._arrivals_s: list[float] = arrivals_s.tolist()
        self._tick_s = tick_s
        self._service_s = 1.0 / capacity.per_s
        self._free_at: list[float] = []
        """A heap: when each instance has finished what it was given."""
        self._waiting: deque[float] = deque()
        self._next = 0
        self._num_ticks = 0
        self._starts_s: list[float] = []
        self._work_s: dict[int, float] = {}
        """Tick -> instance-seconds of work in it, of what was begun so far."""

    def resize(self, num_serving: int, now: float) -> Sequence[float]:
        while len(self._free_at) < num_serving:
            heapq.heappush(self._free_at, now)
        return [max(now, heapq.heappop(self._free_at)) for _ in range(len(self._free_at) - num_serving)]

    def advance(self) -> Served:
        begin_s = self._num_ticks * self._tick_s
        end_s = begin_s + self._tick_s
        before = self._next
        while self._next < len(self._arrivals_s) and self._arrivals_s[self._next] < end_s:
            self._waiting.append(self._arrivals_s[self._next])
            self._next += 1
        started, queued_s = self._start_until(end_s, begin_s)
        queued_s += sum(end_s - max(begin_s, came) for came in self._waiting)
        busy_s = self._work_s.pop(self._num_ticks, 0.0)
        self._num_ticks += 1
        return Served(self._next - before, started, queued_s, busy_s, len(self._waiting))

    def waits(self) -> Waits:
        self._start_until(math.inf, 0.0)
        starts_s = self._starts_s + [math.inf] * (len(self._arrivals_s) - len(self._starts_s))
        at_s = np.array(self._arrivals_s)
        return Waits(at_s, np.array(starts_s) - at_s, np.ones(len(at_s)))

    def _start_until(self, end_s: float, begin_s: float) -> tuple[int, float]:
        """How many, and the seconds since `begin_s` that they waited."""
        num_started, queued_s = 0, 0.0
        while self._waiting and self._free_at:
            start_s = max(self._waiting[0], self._free_at[0])
            if start_s >= end_s:
                break
            came = self._waiting.popleft()
            heapq.heapreplace(self._free_at, start_s + self._service_s)
            self._starts_s.append(start_s)
            num_started += 1
            queued_s += start_s - max(begin_s, came)
            if end_s < math.inf:
                self._note_work(start_s, start_s + self._service_s)
        return num_started, queued_s

    def _note_work(self, start_s: float, end_s: float) -> None:
        tick = int(start_s // self._tick_s)
        while start_s < end_s:
            stop_s = min(end_s, (tick + 1) * self._tick_s)
            self._work_s[tick] = self._work_s.get(tick, 0.0) + stop_s - start_s
            start_s, tick = stop_s, tick + 1


def queue_for(trace: Trace, tick_s: float, capacity: Capacity) -> Queue:
    if trace.arrivals_s is None:
        return FluidQueue(trace.per_tick(tick_s), tick_s, capacity)
    return ArrivalQueue(trace.arrivals_s, tick_s, capacity)
