"""What stands between load and waiting times: what an instance can do, and a queue before a number of them.

There are two queues. `fluid_queue` treats requests as a fluid. It is right for many requests a second and quick
enough for weeks, but knows no chance: a fleet that is 99 % busy has no queue in it. `arrival_queue` replays each
request before a FIFO queue with many servers; for bursts that is the honest one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from scaler.simulation.trace import Floats, Trace

PEAK_INSTANCES = 10
SIZED_UTILIZATION = 0.70


@dataclass(frozen=True)
class Capacity:
    """One instance. A batch of n takes a + b·n seconds; `batch_gain` 1 is one request at a time."""

    per_s: float
    """Requests per second in full batches without a pause."""
    batch_gain: float = 1.0
    """How many times what it does one at a time that is. Batches grow only when every instance is busy, so with a
    gain utilisation reads 100 % long before `per_s` is reached."""
    max_batch: int = 8

    def __post_init__(self) -> None:
        if not 1.0 <= self.batch_gain <= self.max_batch:
            raise ValueError(
                f"batch_gain = {self.batch_gain:g}, must be from 1 to max_batch = {self.max_batch}"
            )

    @classmethod
    def for_peak(
        cls,
        trace: Trace,
        peak_instances: float = PEAK_INSTANCES,
        *,
        batch_gain: float = 1.0,
        max_batch: int = 8,
    ) -> Capacity:
        """The trace's busiest minute needs exactly so many at 70 %: with ten that is "static-10", which costs are
        compared with."""
        return cls(trace.peak_per_s() / (peak_instances * SIZED_UTILIZATION), batch_gain, max_batch)

    @property
    def largest_batch(self) -> int:
        return self.max_batch if self.batch_gain > 1.0 else 1

    def service_s(self, batch: int = 1) -> float:
        """Of a batch of so many."""
        largest = self.largest_batch
        if largest == 1:
            return 1.0 / self.per_s
        per_item = (largest - self.batch_gain) / (largest - 1)
        return (self.batch_gain + per_item * (batch - 1)) / self.per_s

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
