"""Load as a fluid before a number of instances: two curves, what has come and what was begun."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from scaler.simulation.queueing import Capacity, Served, Waits
from scaler.simulation.trace import Floats

SAMPLES_PER_TICK = 4
"""Of the waiting times: the share within 5 s is exact to a quarter of a tick's requests."""


class FluidQueue:
    """The load as a fluid."""

    def __init__(self, arrived: Floats, tick_s: float, capacity: Capacity) -> None:
        self._arrived: list[float] = arrived.tolist()
        self._tick_s = tick_s
        self._one_per_tick = capacity.per_s * tick_s
        self._service_s = capacity.service_s()
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
        busy_s = min(started * self._service_s, self._num_serving * self._tick_s)
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
        last_s = end_s + self._queue / room * tick_s if (room := self._room) else math.inf
        times_s, curve = np.append(times_s, (end_s, last_s)), np.append(curve, (gone[-1], come[-1]))
        parts = (np.arange(SAMPLES_PER_TICK) + 0.5) / SAMPLES_PER_TICK
        at_s = (starts_s[:, None] + parts * tick_s).ravel()
        nth = (come[:-1, None] + parts * arrived[:, None]).ravel()
        waits_s = np.interp(nth, curve, times_s) - at_s
        if not self._num_serving:
            waits_s[nth > gone[-1]] = math.inf
        return Waits(at_s, np.maximum(0.0, waits_s), np.repeat(arrived / SAMPLES_PER_TICK, SAMPLES_PER_TICK))
