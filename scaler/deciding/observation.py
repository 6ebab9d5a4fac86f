"""What the scaler knows of a model at one moment. Values only: no clock, no sockets.

Four things that look alike and are not: a measured zero, a ratio of nothing (no request ended, so there is no mean
to tell), a value that is too old, and no value at all. Confusing them has stopped scalers for ever or scaled a
serving model in (dynamo#6985, #3131, #14575).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum


class Quality(StrEnum):
    GOOD = "good"
    """Measured in this window, zero included."""
    IDLE = "idle"
    """A ratio over nothing (0/0, NaN): the source answers and there was no work. Counts as no load."""
    STALE = "stale"
    """The last value is older than the policy's `stale_after_s`."""
    MISSING = "missing"
    """Never measured, or the source does not have it."""


@dataclass(frozen=True)
class Reading:
    """One figure with its quality. `age_s`: since it was measured."""

    quality: Quality
    value: float = 0.0
    age_s: float = 0.0

    @property
    def is_usable(self) -> bool:
        """May a decision rest on it? Idle is usable, with the value 0."""
        return self.quality in (Quality.GOOD, Quality.IDLE)

    @classmethod
    def of(cls, value: float | None, *, age_s: float = 0.0, stale_after_s: float = math.inf) -> Reading:
        """None is missing, NaN is idle, infinity is missing (no source means it)."""
        if value is None or math.isinf(value):
            return MISSING
        if age_s > stale_after_s:
            return cls(Quality.STALE, 0.0 if math.isnan(value) else value, age_s)
        if math.isnan(value):
            return cls(Quality.IDLE, 0.0, age_s)
        return cls(Quality.GOOD, value, age_s)


MISSING = Reading(Quality.MISSING)


@dataclass(frozen=True)
class Signals:
    """What the collector measured of one model, as a whole unless it says otherwise."""

    utilization: Reading = MISSING
    """0 to 1: busy share of the ready instances over the window (duty cycle, or the GPU's)."""
    queue: Reading = MISSING
    """Requests that wait: in Triton, in the bridges and in the engines."""
    queue_time_s: Reading = MISSING
    """Mean time in queue of the requests that left it in the window."""
    concurrency: Reading = MISSING
    """Requests waiting or running, mean over the window."""
    kv_occupancy: Reading = MISSING
    """0 to 1: high-water mark of the KV cache since the last tick, of what the model may have."""
    arrivals_per_s: Reading = MISSING
    busy_s_per_request: Reading = MISSING
    """Instance-seconds of work that one request costs, in the batches that were formed."""
    wakes: int = 0
    """Requests held by the gateway for a model that has no instance."""


@dataclass(frozen=True)
class Counts:
    """Instances of one model, as the actuator sees them."""

    ready: int
    starting: int = 0
    """Asked for and not serving yet."""
    draining: int = 0
    """Serving what they have, taking no more; not counted in `ready`."""
    room: int | None = None
    """How many more fit here; None: not known."""

    @property
    def total(self) -> int:
        """What decisions are about: ready and starting (aibrix#2670: never ready alone)."""
        return self.ready + self.starting


@dataclass(frozen=True)
class Observation:
    """All that one decision rests on. `counts` None: the actuator could not say; nothing is changed then."""

    counts: Counts | None
    signals: Signals = field(default_factory=Signals)
