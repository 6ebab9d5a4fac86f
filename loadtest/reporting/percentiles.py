"""The latency distribution on an axis that reaches the tail, and percentiles over time.

Intervals are order statistics: of n samples the p-quantile lies between two of them whose ranks the binomial
distribution gives, whatever the latencies' distribution (they must be independent, which queueing breaks).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.stats import binom

from loadtest.records import Float
from loadtest.reporting.chart import Chart, Color, Line

CONFIDENCE = 0.99
"""Of bands and tables in the report; a row of the SLO has its own."""
TABLE_PERCENTILES = (0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 0.9999)
POINTS_PER_DECADE = 48
MIN_BIN_S = 1.0
MAX_BINS = 120
P90_FROM, P99_FROM = 20, 100
"""A bin's p90 or p99 is drawn from so many requests on."""


@dataclass(frozen=True, slots=True)
class Quantile:
    """One percentile of a sample. None where n is too small to say it."""

    p: float
    value: float | None
    low: float | None
    high: float | None
    n_needed: int


def samples_needed(p: float, confidence: float = CONFIDENCE) -> int:
    """The least n of which the largest is above the p-quantile with this confidence: p^n <= 1 - confidence."""
    return 1 if p <= 0 else math.ceil(math.log(1 - confidence) / math.log(p))


def quantile(ordered: Float, p: float, confidence: float = CONFIDENCE) -> Quantile:
    """Of ascending values, with its two-sided interval."""
    n, needed = len(ordered), samples_needed(p, confidence)
    if n < needed or n == 0:
        return Quantile(p, None, None, None, needed)
    outside = (1 - confidence) / 2
    low = int(binom.ppf(outside, n, p))
    high = int(binom.ppf(1 - outside, n, p)) + 1
    return Quantile(
        p,
        value=float(ordered[max(0, math.ceil(n * p) - 1)]),
        low=float(ordered[low - 1]) if low >= 1 else None,
        high=float(ordered[high - 1]) if high <= n else None,
        n_needed=needed,
    )


def distribution(key: str, title: str, note: str, samples: Mapping[str, Float], unit: str = "s") -> Chart:
    """One line with its band a sample; each ends at the last percentile that its n can carry."""
    most = max((len(values) for values in samples.values()), default=0)
    deepest = -math.log10(1 - (1 - CONFIDENCE) ** (1 / most)) if most else 0.0
    xs = np.unique(
        np.concatenate(
            [
                np.linspace(0, deepest, max(2, int(deepest * POINTS_PER_DECADE))),
                [at for p in TABLE_PERCENTILES if (at := -math.log10(1 - p)) <= deepest],
            ]
        ).round(6)
    )
    colors: tuple[Color, ...] = ("blue", "orange", "teal", "violet")
    lines = [
        _line(name, np.sort(values), xs, color)
        for (name, values), color in zip(samples.items(), colors, strict=False)
    ]
    return Chart(key, title, note, "percentile", xs, unit, lines, log=True)


def _line(label: str, ordered: Float, xs: Float, color: Color) -> Line:
    found = [quantile(ordered, 1 - 10**-x) for x in xs.tolist()]
    return Line(
        label,
        values=_positive([one.value for one in found]),
        color=color,
        low=_positive([one.low for one in found]),
        high=_positive([one.high for one in found]),
    )


def _positive(values: list[float | None]) -> Float:
    """A logarithmic axis has no place for 0."""
    return np.array([np.nan if value is None or value <= 0 else value for value in values])


def over_time(key: str, title: str, note: str, t_s: Float, values: Float, end_s: float) -> Chart:
    """p50, p90, p99 and the maximum of the requests that were due in each bin."""
    width_s = bin_width_s(end_s)
    edges = np.arange(0.0, max(end_s, width_s) + width_s, width_s)
    kept = np.isfinite(values)
    order = np.argsort(t_s[kept], kind="stable")
    t_s, values = t_s[kept][order], values[kept][order]
    bounds = np.searchsorted(t_s, edges)
    bins = [values[low:high] for low, high in pairwise(bounds)]

    def at(p: float, least: int) -> Float:
        return np.array(
            [np.quantile(part, p, method="inverted_cdf") if len(part) >= least else np.nan for part in bins]
        )

    lines = (
        Line("p50", at(0.5, 1), "light-blue"),
        Line("p90", at(0.9, P90_FROM), "blue"),
        Line("p99", at(0.99, P99_FROM), "dark-blue"),
        Line("largest", at(1.0, 1), "orange", dots=True),
    )
    drawn = [line for line in lines if np.isfinite(line.values).any()]
    return Chart(key, title, note, "run", edges[:-1] + width_s / 2, "s", drawn, log=True)


def bin_width_s(end_s: float) -> float:
    """A round width that leaves at most MAX_BINS bins."""
    least = max(MIN_BIN_S, end_s / MAX_BINS)
    return next(
        width for width in (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 86400) if width >= least
    )
