"""The latency distribution on an axis that reaches the tail, percentiles as a table, and percentiles over time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from loadtest.measuring.metrics import Measured
from loadtest.measuring.quantiles import DEFAULT_CONFIDENCE, Quantile
from loadtest.measuring.samples import request_values
from loadtest.records import Float
from loadtest.reporting.chart import Chart, Color, Line

TABLE_PERCENTILES = (0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 0.9999)
LEAST_P = 0.01
POINTS_PER_DECADE = 20
POINTS_BELOW_MEDIAN = 15
MIN_BIN_S = 1.0
MAX_BINS = 120
P90_FROM, P99_FROM = 20, 100
"""A bin's p90 or p99 is drawn from so many requests on."""
COLORS: tuple[Color, ...] = ("blue", "orange", "teal", "violet")


def distribution(
    measured: Measured, key: str, title: str, note: str, metrics: Mapping[str, str], *, max_points: int = 400
) -> Chart:
    """`metrics`: name in the legend -> metric. A line ends at the last percentile that n can carry, or where the
    failed requests begin."""
    deepest = max(_deepest(len(measured.samples(metric))) for metric in metrics.values())
    first = -math.log10(1 - LEAST_P)
    num = min(max_points, max(2, int((deepest - first) * POINTS_PER_DECADE)))
    said = [*np.linspace(LEAST_P, 0.5, POINTS_BELOW_MEDIAN), *TABLE_PERCENTILES]
    exact = [at for p in said if (at := -math.log10(1 - p)) <= deepest]
    xs = np.unique(np.concatenate([np.linspace(first, max(first, deepest), num), exact]).round(6))
    lines = [
        _line(measured, name, metric, xs, color)
        for (name, metric), color in zip(metrics.items(), COLORS, strict=False)
    ]
    reach = max((_last(line.values) for line in lines), default=0)
    return Chart(
        key, title, note, "percentile", xs[: reach + 1], "s", [_cut(line, reach) for line in lines], log=True
    )


def _last(values: Float) -> int:
    """Of the last number; 0 without one."""
    found = np.flatnonzero(np.isfinite(values))
    return int(found[-1]) if len(found) else 0


def _cut(line: Line, last: int) -> Line:
    """Without what lies behind the last percentile that any line has."""
    parts = {name: getattr(line, name) for name in ("values", "low", "high")}
    ends = {name: values[: last + 1] for name, values in parts.items() if values is not None}
    return replace(line, **ends)


def _deepest(n: int) -> float:
    """-log10(1 - p) of the deepest percentile that n samples can carry: p^n = 1 - confidence."""
    return 0.0 if n == 0 else -math.log10(1 - (1 - DEFAULT_CONFIDENCE) ** (1 / n))


def _line(measured: Measured, label: str, metric: str, xs: Float, color: Color) -> Line:
    found = [measured.quantile(metric, 1 - 10**-x) for x in xs.tolist()]
    return Line(
        label,
        values=_positive([one.value for one in found]),
        color=color,
        low=_positive([one.low for one in found]),
        high=_positive([one.high for one in found]),
    )


def _positive(values: Sequence[float | None]) -> Float:
    """A logarithmic axis has no place for 0."""
    return np.array([np.nan if value is None or value <= 0 else value for value in values])


def table(measured: Measured, metrics: Mapping[str, str]) -> list[list[Quantile]]:
    """A row a percentile, a quantile a metric."""
    return [[measured.quantile(metric, p) for metric in metrics.values()] for p in TABLE_PERCENTILES]


def over_time(measured: Measured, key: str, title: str, note: str, metric: str, end_s: float) -> Chart:
    """p50, p90, p99 and the maximum of the requests that were due in each bin, the failed ones left out."""
    values, _ = request_values(measured.requests, metric, measured.is_streaming)
    width_s, edges = bins_of(end_s)
    kept = np.isfinite(values)
    t_s, values = measured.requests.t_intended_s[kept], values[kept]
    bins = [values[low:high] for low, high in pairwise(np.searchsorted(t_s, edges))]

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
    said = f"{note} Bins of {width_s:g} s; failed requests have no time and are counted below."
    return Chart(key, title, said, "run", edges[:-1] + width_s / 2, "s", drawn, log=True)


def bins_of(end_s: float) -> tuple[float, Float]:
    """(width, edges) over the run: a round width that leaves at most MAX_BINS bins."""
    least = max(MIN_BIN_S, end_s / MAX_BINS)
    widths = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 86400)
    width_s = float(next(width for width in widths if width >= least))
    return width_s, np.arange(0.0, max(end_s, width_s) + width_s, width_s)
