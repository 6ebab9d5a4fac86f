"""What a policy in a replay is: it sees what a scaler can measure, and wants a number of instances."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from scaler.simulation.queueing import Capacity
from scaler.simulation.trace import Trace

MAX_INSTANCES = 100
"""High enough to let each rival make its own mistakes."""
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
class Plain:
    """No memory of start-up times, the replay's own start-up time."""

    name: str
    period_s: float = 5.0
    startup_s: float | None = None

    def started(self, seconds: float) -> None:
        pass
