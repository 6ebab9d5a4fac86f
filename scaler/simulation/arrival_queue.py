"""Each request for itself before a number of instances."""

from __future__ import annotations

import bisect
import heapq
import math
from collections import deque
from collections.abc import Sequence

import numpy as np

from scaler.simulation.queueing import Capacity, Served, Waits
from scaler.simulation.trace import Floats


class ArrivalQueue:
    """First come, first served, by whoever is free first; a batch takes all that wait then, up to its size."""

    def __init__(self, arrivals_s: Floats, tick_s: float, capacity: Capacity) -> None:
        self._arrivals_s: list[float] = arrivals_s.tolist()
        self._tick_s = tick_s
        self._largest = capacity.largest_batch
        self._service_s = [capacity.service_s(size) for size in range(1, self._largest + 1)]
        """Of one request, of two, ..."""
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
        self._next = bisect.bisect_left(self._arrivals_s, end_s, lo=before)
        self._waiting.extend(self._arrivals_s[before : self._next])
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
        waiting, free_at = self._waiting, self._free_at
        while waiting and free_at:
            start_s = max(waiting[0], free_at[0])
            if start_s >= end_s:
                break
            size = 0
            while size < self._largest and waiting and waiting[0] <= start_s:
                queued_s += start_s - max(begin_s, waiting.popleft())
                size += 1
            done_s = start_s + self._service_s[size - 1]
            heapq.heapreplace(free_at, done_s)
            self._starts_s += [start_s] * size
            num_started += size
            self._note_work(start_s, done_s)
        return num_started, queued_s

    def _note_work(self, start_s: float, end_s: float) -> None:
        tick = int(start_s // self._tick_s)
        while start_s < end_s:
            stop_s = min(end_s, (tick + 1) * self._tick_s)
            self._work_s[tick] = self._work_s.get(tick, 0.0) + stop_s - start_s
            start_s, tick = stop_s, tick + 1
