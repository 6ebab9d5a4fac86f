"""What the loop shows of each model: to the service, to KEDA, to metrics. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field

from scaler.deciding.decision import Decision, Spec
from scaler.deciding.observation import Observation


@dataclass(frozen=True)
class Change:
    """One call of `Target.scale` that runs, from the decision on."""

    num_before: int
    num_wanted: int
    since_s: float
    reason: str
    is_given_up: bool = False
    """What it starts has not come within `start_deadline_s`: no longer counted, and waited for until it ends."""

    @property
    def is_out(self) -> bool:
        return self.num_wanted > self.num_before


@dataclass(frozen=True)
class ModelView:
    """One model after a tick, or at the end of a change."""

    model: str
    at_s: float
    observation: Observation = field(default_factory=lambda: Observation(counts=None))
    """Counts as decided on: with what was asked for and is not there yet."""
    spec: Spec | None = None
    decision: Decision | None = None
    """None: not decided yet."""
    change: Change | None = None
    last_error: str = ""
    """Of the last change or tick that failed, until one succeeds."""
    last_error_s: float = 0.0
    forecast: str = ""
    """What the forecaster says of itself."""
    is_news: bool = True
    """A change began or ended, or the decision's cause is another than before; False: the same as ever."""

    @property
    def wanted(self) -> int | None:
        """Ready and starting instances together, as last decided. None: never known."""
        if self.change is not None and not self.change.is_given_up:
            return self.change.num_wanted
        return self.decision.wanted if self.decision and self.observation.counts else None
