"""Moments of arrivals around a rate curve: gaps drawn for a rate of one per second, then bent to the curve.

A process with unit rate, taken through the inverse of the curve's integral, has the curve's rate at every moment
(time rescaling; Daley and Vere-Jones, An Introduction to the Theory of Point Processes, section 7.4). Nothing is
thinned, so no draw is wasted, and the moments are absolute: no error adds up.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from loadtest.planning.load import Arrivals, Constant, Gamma
from loadtest.planning.rates import RateCurve

Float = npt.NDArray[np.float64]


def draw_arrivals(curve: RateCurve, arrivals: Arrivals, rng: np.random.Generator) -> Float:
    """Ascending seconds, each below the curve's duration."""
    return curve.moment_of(_unit_arrivals(arrivals, curve.total, rng))


def _unit_arrivals(arrivals: Arrivals, end: float, rng: np.random.Generator) -> Float:
    """Moments of a process with rate 1, from 0 to below `end`."""
    if isinstance(arrivals, Constant):
        # Half a gap in: as many come in each whole second of the integral, and none on the edge.
        return np.arange(math.ceil(end - 0.5), dtype=np.float64) + 0.5
    shape = arrivals.burstiness if isinstance(arrivals, Gamma) else 1.0
    moments = np.empty(0)
    now = 0.0
    while now < end:
        wanted = int(end - now + 4 * math.sqrt((end - now) / shape)) + 16
        more = now + np.cumsum(rng.gamma(shape, 1 / shape, wanted))
        moments = np.concatenate((moments, more))
        now = float(more[-1])
    return np.asarray(moments[moments < end])
