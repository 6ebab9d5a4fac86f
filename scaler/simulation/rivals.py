"""What our decider is compared with: fixed counts, the oracle, and the thresholds of the issue.

Those are: out at 70 % or 20 waiting, in at 30 % and 5 waiting for two minutes, 60 s and 120 s between changes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scaler.simulation.autoscalers import Hpa, Kpa
from scaler.simulation.rival import MAX_INSTANCES, ROUNDING, Plain, Rival, Seen, Setting, Wish

QUEUE_WITHIN_S = 15.0
"""In which a proportional step works the queue off."""


@dataclass
class Static(Plain):
    """A fixed count: of the busiest minute, or of the mean."""

    name: str = "static-peak"
    of_mean: bool = False
    num_instances: int | None = None
    """Exactly so many instead."""
    _count: int = 1

    def begin(self, setting: Setting) -> int:
        trace, capacity = setting.trace, setting.capacity
        rate = float(trace.rates(60.0).mean()) if self.of_mean else trace.peak_per_s()
        self._count = self.num_instances or capacity.needed(rate)
        return self._count

    def wanted(self, seen: Seen) -> Wish:
        return Wish(self._count)


@dataclass
class Oracle(Plain):
    """Each minute exactly what it needs at 70 %, known beforehand, without any start-up time."""

    name: str = "oracle"
    startup_s: float | None = 0.0
    _setting: Setting | None = None

    def begin(self, setting: Setting) -> int:
        self._setting = setting
        return setting.num_at_start

    def wanted(self, seen: Seen) -> Wish:
        if self._setting is None:
            raise RuntimeError("wanted() before begin()")
        return Wish(self._setting.capacity.needed(self._setting.trace.rate_at(seen.at_s)))


@dataclass
class Thresholds(Plain):
    """The seeds' rule, one instance at a time.

    `proportional`: to the count that brings utilisation to `aim`, waiting requests counted as work of the window
    and at most halved on the way in, which the seeds leave open.
    """

    name: str = "thresholds"
    proportional: bool = False
    aim: float = 0.60
    sustained_s: float = 120.0
    cooldown_out_s: float = 60.0
    cooldown_in_s: float = 120.0
    minimum: int = 1
    _capacity_per_s: float = 1.0
    _quiet_since_s: float | None = None
    _last_out_s: float = -math.inf
    _last_change_s: float = -math.inf

    def begin(self, setting: Setting) -> int:
        self._capacity_per_s = setting.capacity.per_s
        self._quiet_since_s, self._last_out_s, self._last_change_s = None, -math.inf, -math.inf
        return max(self.minimum, setting.num_at_start)

    def wanted(self, seen: Seen) -> Wish:
        is_quiet = seen.utilization < 0.30 and seen.queue < 5
        if not is_quiet:
            self._quiet_since_s = None
        elif self._quiet_since_s is None:
            self._quiet_since_s = seen.at_s
        if seen.utilization > 0.70 or seen.queue > 20:
            return self._out(seen)
        if self._quiet_since_s is not None and seen.at_s - self._quiet_since_s >= self.sustained_s:
            return self._in(seen)
        return Wish(seen.total)

    def _out(self, seen: Seen) -> Wish:
        # What starts is counted: once it brings utilisation down, no more is asked for.
        is_answered = bool(seen.starting) and seen.busy <= 0.70 * seen.total
        if is_answered or seen.at_s - self._last_out_s < self.cooldown_out_s:
            return Wish(seen.total)
        self._last_out_s = self._last_change_s = seen.at_s
        wanted = max(seen.total + 1, self._aimed(seen)) if self.proportional else seen.total + 1
        return Wish(min(wanted, MAX_INSTANCES), f"{seen.utilization:.0%} busy, {seen.queue:.0f} wait")

    def _in(self, seen: Seen) -> Wish:
        if seen.at_s - self._last_change_s < self.cooldown_in_s or seen.total <= self.minimum:
            return Wish(seen.total)
        self._last_change_s = self._quiet_since_s = seen.at_s
        wanted = seen.total - 1
        if self.proportional:
            wanted = min(wanted, max(self._aimed(seen), seen.total // 2))
        return Wish(max(self.minimum, wanted), f"{seen.utilization:.0%} busy")

    def _aimed(self, seen: Seen) -> int:
        backlog = seen.queue / self._capacity_per_s / QUEUE_WITHIN_S
        return math.ceil((seen.busy + backlog) / self.aim - ROUNDING)


def all_rivals() -> list[Rival]:
    """In the order that tables show them."""
    return [
        Static(),
        Static("static-mean", of_mean=True),
        Thresholds(),
        Thresholds("thresholds-prop", proportional=True),
        Hpa(),
        Kpa(),
        Oracle(),
    ]
