"""What our decider is compared with. All behind one small protocol, as ours is (`ours.Ours`).

The seeds' thresholds are the issue's: out at 70 % or 20 waiting, in at 30 % and 5 waiting for two minutes, 60 s and
120 s between changes. HPA and Knative are written after their sources, research file section 2.1.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from scaler.simulation.queueing import Capacity
from scaler.simulation.traces import Trace

MAX_INSTANCES = 100
"""High enough to let each rival make its own mistakes."""
QUEUE_WITHIN_S = 15.0
"""In which a proportional step works the queue off."""
ROUNDING = 1e-6
"""7.0000001 instances' worth of work is seven."""


class Seen(NamedTuple):
    """What a scaler can measure."""

    at_s: float
    ready: int
    starting: int
    utilization: float
    """Busy share of the serving instances, the mean over the window."""
    queue: float
    """Requests that wait, now."""
    queue_time_s: float
    """Mean wait of those that were begun in the window; NaN when none was."""
    concurrency: float
    """Requests waiting or running, the mean over the window."""
    arrivals_per_s: float
    busy_s_per_request: float
    """NaN when none was begun."""

    @property
    def total(self) -> int:
        return self.ready + self.starting

    @property
    def busy(self) -> float:
        """Instances' worth of work."""
        return self.utilization * self.ready


class Wish(NamedTuple):
    """So many ready and starting."""

    num_instances: int
    reason: str = ""


@dataclass(frozen=True)
class Setting:
    """What is known before the replay begins."""

    trace: Trace
    capacity: Capacity
    num_at_start: int
    """What the first minute needs at 70 %: nobody gains or loses by how he begins."""


class Rival(Protocol):
    """One policy. `begin` forgets everything, so that one object serves several replays."""

    @property
    def name(self) -> str: ...

    @property
    def period_s(self) -> float:
        """How often it decides."""

    @property
    def startup_s(self) -> float | None:
        """None: the replay's. 0 for those that stand outside of the contest."""

    def begin(self, setting: Setting) -> int:
        """How many instances serve at second 0."""

    def wanted(self, seen: Seen) -> Wish: ...

    def started(self, seconds: float) -> None:
        """An instance that was asked for serves, so long after."""


@dataclass
class _Plain:
    """No memory of start-up times, the replay's own start-up time."""

    name: str
    period_s: float = 5.0
    startup_s: float | None = None

    def started(self, seconds: float) -> None:
        pass


@dataclass
class Static(_Plain):
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
class Oracle(_Plain):
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
class Thresholds(_Plain):
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


@dataclass
class Hpa(_Plain):
    """Kubernetes' HPA v2 on utilisation: tolerance 10 %, in by the highest wish of 300 s, out to at most double."""

    name: str = "hpa-like"
    period_s: float = 15.0
    target: float = 0.70
    tolerance: float = 0.10
    window_s: float = 300.0
    minimum: int = 1
    _wishes: deque[tuple[float, int]] = field(default_factory=deque)

    def begin(self, setting: Setting) -> int:
        self._wishes.clear()
        return max(self.minimum, setting.num_at_start)

    def wanted(self, seen: Seen) -> Wish:
        total = seen.total
        # What starts counts as idle on the way out and as fully busy on the way in; it never turns the direction.
        if seen.utilization > self.target:
            ratio = seen.busy / (self.target * total) if total else 1.0
            is_same = ratio > 1.0
        else:
            ratio = (seen.busy + seen.starting) / (self.target * total) if total else 1.0
            is_same = ratio < 1.0
        keeps = not is_same or abs(ratio - 1.0) <= self.tolerance
        wish = total if keeps else math.ceil(ratio * total - ROUNDING)
        wish = min(max(wish, self.minimum), max(2 * total, total + 4), MAX_INSTANCES)
        self._wishes.append((seen.at_s, wish))
        while self._wishes[0][0] < seen.at_s - self.window_s:
            self._wishes.popleft()
        if wish < total:
            wish = min(total, max(wished for _, wished in self._wishes))
        return Wish(wish, f"ratio {ratio:.2f}")


@dataclass
class Kpa(_Plain):
    """Knative's KPA on concurrency: a stable window of 60 s, a panic window of 6 s, target 70 % of what one holds.

    Waiting requests are concurrency to it, as they are in its activator. In panic, from twice what is ready on, it
    never scales in, until a whole stable window has passed without.
    """

    name: str = "knative-like"
    period_s: float = 5.0
    target: float = 0.70
    request_s: float = 1.0
    """What one request takes among others: with it follows how many a busy instance has in flight, which is what
    its container concurrency would be set to."""
    stable_s: float = 60.0
    panic_s: float = 6.0
    panic_threshold: float = 2.0
    max_down_rate: float = 2.0
    minimum: int = 1
    _seen: deque[tuple[float, float]] = field(default_factory=deque)
    _panic_since_s: float | None = None
    _panic_wish: int = 0
    _container_concurrency: float = 1.0

    def begin(self, setting: Setting) -> int:
        self._seen.clear()
        self._container_concurrency = max(1.0, setting.capacity.per_s * self.request_s)
        self._panic_since_s, self._panic_wish = None, 0
        return max(self.minimum, setting.num_at_start)

    def wanted(self, seen: Seen) -> Wish:
        now, ready = seen.at_s, max(1, seen.ready)
        self._seen.append((now, seen.busy + seen.queue / self._container_concurrency))
        while self._seen[0][0] <= now - self.stable_s:
            self._seen.popleft()
        stable, panic = self._desired(now, self.stable_s, ready), self._desired(now, self.panic_s, ready)
        if panic / ready >= self.panic_threshold:
            self._panic_since_s = now
        elif self._panic_since_s is not None and now - self._panic_since_s > self.stable_s:
            self._panic_since_s, self._panic_wish = None, 0
        wish = stable
        if self._panic_since_s is not None:
            self._panic_wish = max(self._panic_wish, panic, stable, ready)
            wish = self._panic_wish
        return Wish(min(max(wish, self.minimum), MAX_INSTANCES), f"stable {stable}, panic {panic}")

    def _desired(self, now: float, window_s: float, ready: int) -> int:
        values = [value for at_s, value in self._seen if at_s > now - window_s]
        wish = math.ceil(sum(values) / len(values) / self.target - ROUNDING)
        return max(wish, math.floor(ready / self.max_down_rate))


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
