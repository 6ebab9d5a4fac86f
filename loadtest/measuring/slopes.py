"""Does a quantity drift? A straight line with an interval that knows that neighbours in time are alike."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

from loadtest.measuring.sample_sizes import lag_1_correlation
from loadtest.records import Float

CONFIDENCE = 0.99
"""Two quantities are tested in each run: at 95 % one steady run in ten would be called drifting."""
NEGLIGIBLE = 0.10
"""A drift that is at most this part of the level changes no verdict, however significant; perf_analyzer's 10 %."""
MOST_UNSEEN = 1.0
"""A run in which the level might have doubled unseen has not been tested."""
FEWEST_POINTS = 12


@dataclass(frozen=True, slots=True)
class Slope:
    """Of y over time, in units of y a second, with its interval at `CONFIDENCE`."""

    per_s: float
    low: float
    high: float
    level: float
    """Mean of y, or `floor` where that is smaller: what a drift is compared with."""
    floor: float
    span_s: float
    points: int
    correlation: float
    """Of neighbouring residuals, lag 1."""

    @property
    def drifts(self) -> bool:
        """The interval excludes 0, and the drift over the whole span is not negligible."""
        smallest = max(self.low, -self.high, 0.0)
        is_small = max(abs(self.low), abs(self.high)) * self.span_s <= NEGLIGIBLE * self.level
        return smallest > 0 and not is_small

    @property
    def is_told(self) -> bool:
        """A drift of the level's own size over the span would not have been missed."""
        return self.points >= FEWEST_POINTS and self._unseen <= MOST_UNSEEN

    @property
    def _unseen(self) -> float:
        """Half the interval over the whole span, as a part of the level."""
        half = (self.high - self.low) / 2 * self.span_s
        return half / self.level if self.level > 0 else (0.0 if half == 0 else math.inf)

    @property
    def span_needed_s(self) -> float:
        """How long the run must be for `is_told`: the interval over the span shrinks with its root."""
        by_points = self.span_s * FEWEST_POINTS / max(1, self.points)
        if not math.isfinite(self._unseen):
            return by_points
        return max(by_points, self.span_s * (self._unseen / MOST_UNSEEN) ** 2)


def slope_of(t_s: Float, y: Float, *, floor: float = 0.0, beside: Float | None = None) -> Slope | None:
    """By least squares; NaN in y is left out, and below 4 points there is None.

    The standard error is widened by sqrt((1 + r) / (1 - r)) for residuals that follow r of the one before
    (first order), and r by its own bias in short series (Kendall 1954: -(1 + 3 r) / n, and a little for the
    line). `beside`: another quantity that y may follow, such as the offered rate; the slope is what it leaves.
    """
    known = np.isfinite(y)
    t_s, y = t_s[known], y[known]
    columns = [np.ones_like(t_s), t_s - t_s.mean()] if len(t_s) else []
    if beside is not None and len(t_s):
        columns.append(beside[known] - beside[known].mean())
    if len(t_s) < len(columns) + 2 or len(t_s) < 4:
        return None
    design = np.column_stack(columns)
    solution, *_ = np.linalg.lstsq(design, y, rcond=None)
    residuals = y - design @ solution
    inverse = np.linalg.pinv(design.T @ design)
    n, freedom = len(y), len(y) - len(columns)
    correlation = _unbiased(lag_1_correlation(residuals), n)
    widening = (1 + correlation) / (1 - correlation)
    variance = float(residuals @ residuals) / freedom
    # Residuals of an exact line are rounding, and an interval made of them would exclude 0 for nothing.
    rounding = 1e-12 * max(1.0, float(np.abs(y).max()))
    error = math.sqrt(max(variance, rounding**2) * inverse[1, 1] * widening)
    freedom_left = max(1.0, n / widening - len(columns))
    half = float(student.ppf((1 + CONFIDENCE) / 2, freedom_left)) * error
    slope = float(solution[1])
    return Slope(
        per_s=slope,
        low=slope - half,
        high=slope + half,
        level=max(floor, abs(float(y.mean()))),
        floor=floor,
        span_s=float(t_s[-1] - t_s[0]) * n / (n - 1),
        points=n,
        correlation=correlation,
    )


def _unbiased(correlation: float, n: int) -> float:
    return min(0.95, max(0.0, correlation + (2 + 4 * max(0.0, correlation)) / n))
