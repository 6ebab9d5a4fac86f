"""The scaler's own decider in a replay: `scaler.deciding.decider.decide`, on the trace's clock.

It is given what the loop gives it: signals, counts, the lead as measured by `StartTimes`, and the floors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from scaler.deciding import reservations
from scaler.deciding.decider import decide
from scaler.deciding.decision import Decision, Floor, Spec, State
from scaler.deciding.demand import measure
from scaler.deciding.forecast import Forecaster
from scaler.deciding.observation import Counts, Observation, Reading, Signals
from scaler.deciding.policy import ModelPolicy
from scaler.deciding.start_times import StartTimes
from scaler.simulation.rival import Seen, Setting, Wish

MODEL = "model"


@dataclass
class Ours:
    """One model's policy. `lead_time_s` in it stands for a start-up time that is known before the first start."""

    policy: ModelPolicy
    name: str = "tidegate"
    period_s: float = 5.0
    startup_s: float | None = None
    last: Decision | None = None
    """The newest decision, for whoever looks at why."""
    _starts: StartTimes = field(default_factory=StartTimes)
    _state: State = field(default_factory=lambda: State.adopted(0.0))
    _start_unix_s: float = 0.0
    _forecaster: Forecaster = field(init=False)

    def __post_init__(self) -> None:
        self._forecaster = Forecaster(self.policy.forecast)

    def begin(self, setting: Setting) -> int:
        self._start_unix_s = setting.trace.start_unix_s
        self._starts = StartTimes()
        self._forecaster = Forecaster(self.policy.forecast)
        self._state = State.adopted(self._start_unix_s)
        self.last = None
        return min(max(setting.num_at_start, self.policy.min_instances), self.policy.max_instances)

    def wanted(self, seen: Seen) -> Wish:
        now = self._start_unix_s + seen.at_s
        observation = observed(seen)
        lead_s = self._starts.lead_s(MODEL, self.policy)
        spec = Spec(MODEL, self.policy, lead_s, self._floors(now, lead_s))
        if (busy := measure(observation).busy) is not None:
            self._forecaster.observe(now, busy)
        self.last = decide(spec, self._state, observation, now)
        self._state = self.last.state
        return Wish(self.last.wanted, self.last.reason)

    def started(self, seconds: float) -> None:
        self._starts.started(MODEL, seconds)

    def _floors(self, now: float, lead_s: float) -> tuple[Floor, ...]:
        found = (
            reservations.floors(self.policy.reservations, now, lead_s, self.policy.max_instances),
            self._forecaster.floor(now, lead_s, self.policy),
        )
        return tuple(floor for floor in found if floor is not None)


def observed(seen: Seen) -> Observation:
    """As the collector would have it: what no request told is idle, not missing."""
    signals = Signals(
        utilization=Reading.of(seen.utilization if seen.ready else math.nan),
        queue=Reading.of(seen.queue),
        queue_time_s=Reading.of(seen.queue_time_s),
        concurrency=Reading.of(seen.concurrency),
        arrivals_per_s=Reading.of(seen.arrivals_per_s),
        busy_s_per_request=Reading.of(seen.busy_s_per_request),
    )
    return Observation(Counts(ready=seen.ready, starting=seen.starting), signals)
