"""How many users there are now, for Locust's `tick`."""

from __future__ import annotations

import numpy as np

from loadtest.planning.rates import RateCurve


def users_at(curve: RateCurve, run_time_s: float) -> tuple[int, float] | None:
    """(users, how many start or stop a second) now; None: the curve is over."""
    if run_time_s >= curve.duration_s:
        return None
    users = round(float(curve.rate_at(np.array([run_time_s]))[0]))
    return users, float(max(users, 1))
