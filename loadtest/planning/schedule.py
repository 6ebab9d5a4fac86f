"""When each request starts and which user makes it: drawn whole, from the plan and its seed alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadtest.planning.arrivals import draw_arrivals
from loadtest.planning.load import ClosedLoop, Load, OpenLoop, Replay
from loadtest.planning.plan import Plan, PlanError
from loadtest.planning.replay import replayed, replayed_duration_s
from loadtest.planning.shapes import curve_of

Float = npt.NDArray[np.float64]
Int = npt.NDArray[np.int64]

_ARRIVALS, _USERS = 1, 2
"""Streams of random numbers of their own: another mix of users leaves the moments as they are."""


@dataclass(frozen=True, slots=True)
class Closed:
    """A closed loop: `concurrency` slots, each sends its next request when the one before has ended.

    Slot k starts at `starts_s[k]`; no request starts at or after `duration_s`. Slots take the numbers 0, 1, 2, ...
    as they need them (process p of P: p, p + P, ...); `call_of` knows every number.
    """

    starts_s: Float
    """Shape [concurrency], ascending, seconds since t0."""
    duration_s: float

    @property
    def concurrency(self) -> int:
        return len(self.starts_s)


@dataclass(frozen=True, slots=True)
class Schedule:
    """Open loop and replay: all requests. A conversation stands here once, with its first turn."""

    t_intended_s: Float
    """Shape [n], ascending, seconds since t0. [0] of a closed loop."""
    user: Int
    """Shape [n], into `plan.users`."""
    row: Int
    """Shape [n], the row of the replayed trace; -1 without one."""
    copy: Int
    """Shape [n]: 0, or which copy of the trace's sessions it is of (`rate_scale` above 1)."""
    duration_s: float
    closed: Closed | None = None

    def __len__(self) -> int:
        return len(self.t_intended_s)


def plan_schedule(plan: Plan) -> Schedule:
    """The same for the same plan and seed, in each process. Raises PlanError for a trace without requests."""
    load = plan.load
    arrivals_rng, users_rng = (np.random.default_rng((plan.seed, part)) for part in (_ARRIVALS, _USERS))
    try:
        duration_s = duration_of(load)
        if isinstance(load, ClosedLoop):
            starts_s = np.arange(load.concurrency) * load.ramp_s / load.concurrency
            none = np.empty(0, dtype=np.int64)
            return Schedule(np.empty(0), none, none, none, duration_s, Closed(starts_s, duration_s))
        if isinstance(load, OpenLoop):
            t_s = draw_arrivals(curve_of(load.shape), load.arrivals, arrivals_rng)
            row = np.full(len(t_s), -1, dtype=np.int64)
            copy = np.zeros(len(t_s), dtype=np.int64)
        else:
            found = replayed(load, arrivals_rng)
            t_s, row, copy = found.t_s, found.row, found.copy
    except (ValueError, OSError) as exc:
        raise PlanError([f"load: {exc}"]) from exc
    return Schedule(t_s, _users(plan, len(t_s), users_rng), row, copy, duration_s)


def duration_of(load: Load) -> float:
    """Seconds from t0 to the load's end. Raises TraceUnreadable."""
    match load:
        case OpenLoop():
            return curve_of(load.shape).duration_s
        case ClosedLoop():
            return load.duration_s
        case Replay():
            return replayed_duration_s(load)


def shares(plan: Plan) -> Float:
    """Each user's share of the requests, shape [users]; 1 in all."""
    weights = np.array([user.weight for user in plan.users])
    return np.asarray(weights / weights.sum())


def _users(plan: Plan, count: int, rng: np.random.Generator) -> Int:
    return np.asarray(rng.choice(len(plan.users), size=count, p=shares(plan)), dtype=np.int64)
