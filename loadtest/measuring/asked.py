"""What a plan says of its load over time, for the search for steady state."""

from __future__ import annotations

import numpy as np

from loadtest.measuring.steady import AskedLoad
from loadtest.planning.load import ClosedLoop, Day, OpenLoop, Recorded, Replay
from loadtest.planning.plan import Plan
from loadtest.planning.rates import RateCurve
from loadtest.planning.shapes import curve_of


def asked_load(plan: Plan) -> AskedLoad:
    """Raises ValueError when a trace that the shape follows can't be read."""
    return AskedLoad(
        duration_s=plan.duration_s,
        plateaus=_plateaus(plan),
        detect=plan.warm_up.detect,
        least_s=plan.warm_up.least_s,
        most_s=plan.warm_up.most_s,
        not_asked="" if plan.needs_steady else _why_not(plan),
    )


def _plateaus(plan: Plan) -> tuple[tuple[float, float], ...]:
    load = plan.load
    if isinstance(load, ClosedLoop):
        return ((load.ramp_s, load.duration_s),)
    if isinstance(load, OpenLoop) and not isinstance(load.shape, Day | Recorded):
        return levels(curve_of(load.shape))
    return ()


def levels(curve: RateCurve) -> tuple[tuple[float, float], ...]:
    """(start, end) wherever the rate stays the same and is not 0; levels that go on in the next line are one."""
    found: list[tuple[float, float]] = []
    is_level = (np.diff(curve.rate_per_s) == 0) & (np.diff(curve.t_s) > 0) & (curve.rate_per_s[1:] > 0)
    for place in np.flatnonzero(is_level):
        start_s, end_s = float(curve.t_s[place]), float(curve.t_s[place + 1])
        if place and is_level[place - 1]:
            found[-1] = (found[-1][0], end_s)
        else:
            found.append((start_s, end_s))
    return tuple(found)


def _why_not(plan: Plan) -> str:
    if plan.warm_up.steady == "off":
        return "not asked: the plan says warm_up.steady = off"
    if isinstance(plan.load, Replay):
        return "not asked: a replayed trace brings its load as it was, and stands still nowhere"
    return "not asked: the load changes by plan; warm_up.steady = required tests it level by level"
