"""What counters rose by, and what gauges showed, over the last seconds. Pure: every sample brings its own time.

Rates are differences between snapshots divided by the time between *them*. A tick that came late, or a source that
was away, therefore changes how long a window is, never what a second of it counts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, NamedTuple, TypeVar


class Snapshot(NamedTuple):
    at_s: float
    values: Mapping[str, float]


@dataclass(frozen=True)
class Rise:
    """What the counters rose by from one snapshot to a later one."""

    ends_s: float
    seconds: float
    values: Mapping[str, float]

    def __getitem__(self, name: str) -> float:
        return self.values[name]

    def per_s(self, name: str) -> float:
        return self.values[name] / self.seconds

    def ratio(self, over: str, under: str) -> float:
        """NaN when nothing happened: 0/0 is no measurement of 0."""
        return self.values[over] / self.values[under] if self.values[under] > 0 else float("nan")


class Counters:
    """Snapshots of counters that only rise. One that fell is another source: the window begins anew.

    `max_gap_s`: two snapshots further apart are not compared; a mean over an outage says nothing about now.
    """

    def __init__(self, keep_s: float, max_gap_s: float) -> None:
        self._keep_s = keep_s
        self._max_gap_s = max_gap_s
        self._snapshots: deque[Snapshot] = deque()

    def add(self, at_s: float, values: Mapping[str, float]) -> bool:
        """False: a counter fell (Triton restarted, the model was reloaded), and all before is forgotten."""
        has_risen = True
        if self._snapshots:
            last = self._snapshots[-1]
            if at_s <= last.at_s:
                return True
            has_risen = all(values.get(name, 0.0) >= value for name, value in last.values.items())
            if not has_risen or at_s - last.at_s > self._max_gap_s:
                self._snapshots.clear()
        self._snapshots.append(Snapshot(at_s, values))
        while len(self._snapshots) > 2 and self._snapshots[1].at_s <= at_s - self._keep_s:
            self._snapshots.popleft()
        return has_risen

    def over(self, seconds: float) -> Rise | None:
        """Up to the newest snapshot, from the latest one that is `seconds` older, or the oldest.

        None: there are not two yet.
        """
        if len(self._snapshots) < 2:
            return None
        newest = self._snapshots[-1]
        base = self._snapshots[0]
        for snapshot in self._snapshots:
            if snapshot.at_s > newest.at_s - seconds:
                break
            base = snapshot
        risen = {name: value - base.values.get(name, 0.0) for name, value in newest.values.items()}
        return Rise(newest.at_s, newest.at_s - base.at_s, risen)

    def still_since_s(self, name: str) -> float | None:
        """When this counter was first seen at its present value. None: no snapshot."""
        since_s = None
        for snapshot in reversed(self._snapshots):
            if snapshot.values.get(name, 0.0) != self._snapshots[-1].values.get(name, 0.0):
                break
            since_s = snapshot.at_s
        return since_s


class Gauge:
    """A figure that goes up and down: its mean and its greatest value over the last seconds."""

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self._samples: deque[tuple[float, float]] = deque()

    def add(self, at_s: float, value: float) -> None:
        if self._samples and at_s <= self._samples[-1][0]:
            return
        self._samples.append((at_s, value))
        while self._samples[0][0] < at_s - self._keep_s:
            self._samples.popleft()

    @property
    def newest_s(self) -> float | None:
        return self._samples[-1][0] if self._samples else None

    def mean(self, seconds: float) -> float | None:
        """Weighted by time: a sample stands for the time since the one before it. None: no sample."""
        recent = self._recent(seconds)
        if len(recent) < 2:
            return recent[0][1] if recent else None
        spans = [(at_s - before_s, value) for (before_s, _), (at_s, value) in pairwise(recent)]
        return sum(span * value for span, value in spans) / sum(span for span, _ in spans)

    def highest(self, seconds: float) -> float | None:
        return max((value for _, value in self._recent(seconds)), default=None)

    def lowest(self, seconds: float) -> float | None:
        return min((value for _, value in self._recent(seconds)), default=None)

    def change(self, seconds: float) -> float:
        """From the first sample in it to the last; 0 when there is only one."""
        recent = self._recent(seconds)
        return recent[-1][1] - recent[0][1] if recent else 0.0

    def _recent(self, seconds: float) -> list[tuple[float, float]]:
        if not self._samples:
            return []
        return [sample for sample in self._samples if sample[0] >= self._samples[-1][0] - seconds]


Key = TypeVar("Key", bound=Hashable)


class SumOfCounters(Generic[Key]):
    """One rising counter made of many that come, go and begin at 0 again: requests landed, per instance.

    The first look is the base: what was counted before it is not ours.
    """

    def __init__(self) -> None:
        self.total = 0.0
        self._last: dict[Key, float] | None = None

    def update(self, values: Mapping[Key, float]) -> float:
        if self._last is not None:
            for key, value in values.items():
                before = self._last.get(key, 0.0)
                self.total += value - before if value >= before else value
        self._last = dict(values)
        return self.total
