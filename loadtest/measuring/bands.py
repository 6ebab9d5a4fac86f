"""Percentiles as curves with bands: what plots of a distribution are made of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadtest.measuring.quantiles import DEFAULT_CONFIDENCE, SampleQuantiles
from loadtest.measuring.samples import Samples
from loadtest.records import Float

POINTS_PER_DECADE = 24


@dataclass(frozen=True, slots=True)
class Band:
    """Shape [k] each; NaN where it can't be said (n too small, or infinite because requests failed)."""

    p: Float
    """Ascending, in (0, 1); evenly spaced in -log10(1 - p), which gives each nine the same room."""
    value: Float
    """Up to the last percentile that n can carry. Unfinished requests make it a lower bound."""
    low: Float
    high: Float
    is_lower_bound: bool
    """Somewhere in the curve."""


def band(samples: Samples, confidence: float = DEFAULT_CONFIDENCE, deepest: float = 4.0) -> Band:
    """`deepest`: -log10(1 - p) of the last point; 4 is p99.99. The band holds at each point by itself."""
    depths = np.linspace(0.02, deepest, max(2, int(deepest * POINTS_PER_DECADE)))
    ps = 1 - 10.0**-depths
    ranked = SampleQuantiles(samples)
    found = [ranked.at(float(p), confidence) for p in ps]
    shown = [one for one in found if one.is_shown]

    def column(values: list[float | None]) -> Float:
        return np.array([np.nan if value is None else value for value in values])

    return Band(
        p=ps[: len(shown)],
        value=column([one.value for one in shown]),
        low=column([one.low for one in shown]),
        high=column([one.high for one in shown]),
        is_lower_bound=any(one.is_lower_bound for one in shown),
    )
