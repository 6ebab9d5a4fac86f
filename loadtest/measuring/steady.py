"""Which part of a run is measured, and whether the system stood still in it. Tested, never assumed.

Barrett et al. (arXiv 1602.00602) found steady state in fewer than half of their benchmarks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from loadtest.curve import Curve
from loadtest.measuring import bins
from loadtest.measuring.rows import in_time_order
from loadtest.measuring.samples import request_values, streams
from loadtest.measuring.slopes import FEWEST_POINTS, Slope, slope_of
from loadtest.measuring.warmup import warm_up_bins
from loadtest.records import Float, Requests

BIN_S = 5.0
FEWEST_BINS = 24
"""A short run has shorter bins, so that there are so many of them; 1 s at the least."""
MANY_TIMES = 10
"""A run that would have to be so many times as long is told so without a figure."""
LEAST_LATENCY_S = 0.001
LEAST_REQUESTS = 1.0
"""Drifts are compared with these where the level is lower: from 0.01 to 0.02 in flight is no drift."""


@dataclass(frozen=True, slots=True)
class AskedLoad:
    """What the plan says of its load over time, in seconds after t0."""

    duration_s: float
    """No request is due after it."""
    plateaus: tuple[tuple[float, float], ...] = ()
    """(start, end) of each stretch with one rate or one concurrency, tested one by one. (): the load changes all
    the time, and what is tested is whether latency and requests in flight follow nothing but the offered rate."""
    detect: bool = True
    """Look for the end of the warm-up in the data."""
    least_s: float = 0.0
    """Cut off at least this."""
    most_s: float | None = None
    """A longer warm-up is no steady state; None: half of a plateau."""
    not_asked: str = ""
    """Why steady state is not asked for; empty when it is."""


@dataclass(frozen=True, slots=True)
class Trend:
    """One tested quantity in one stretch."""

    name: str
    """`ttft.scheduled p50`, `in_flight`, `latency.scheduled p50`."""
    unit: str
    start_s: float
    end_s: float
    slope: Slope | None
    """None with too few points for a line."""

    @property
    def is_steady(self) -> bool:
        return self.slope is not None and self.slope.is_told and not self.slope.drifts


@dataclass(frozen=True, slots=True)
class Window:
    """Latencies belong to requests that were due in [start_s, end_s), tokens to the time they came."""

    start_s: float
    end_s: float
    is_steady: bool | None
    """None: not asked of this load; `why` has the reason."""
    why: str
    evidence: tuple[Trend, ...]

    @property
    def span_s(self) -> float:
        return max(0.0, self.end_s - self.start_s)


def find_window(requests: Requests, curve: Curve, asked: AskedLoad) -> Window:
    """Cut the warm-up off, then test what is left."""
    requests = in_time_order(requests)
    bin_s = min(BIN_S, max(1.0, asked.duration_s / FEWEST_BINS))
    name, values = _latencies(requests)
    evidence: list[Trend] = []
    unsettled: list[str] = []
    starts_s: list[float] = []
    for start_s, end_s in asked.plateaus or ((0.0, asked.duration_s),):
        start_s = max(start_s, asked.least_s)
        edges_s = bins.edges(start_s, max(start_s, end_s), bin_s)
        medians = bins.medians(requests.t_intended_s, values, edges_s)
        in_flight = bins.in_flight(requests, edges_s)
        cut, beside = 0, None
        if not asked.plateaus:
            beside = bins.rate(requests.t_intended_s, edges_s)
        elif asked.detect:
            watched = {name: medians, "in_flight": in_flight}
            if kv := curve.named("kv.used_blocks"):
                watched["kv.used_blocks"] = bins.series_means(kv, edges_s)
            cut, too_long = _warm_up(watched, edges_s, asked.most_s)
            unsettled += [too_long] if too_long else []
        starts_s.append(float(edges_s[cut]))
        tested = [(name, "s", medians, LEAST_LATENCY_S), ("in_flight", "requests", in_flight, LEAST_REQUESTS)]
        for quantity, unit, y, floor in tested:
            slope = slope_of(
                bins.middles(edges_s[cut:]),
                y[cut:],
                floor=floor,
                beside=beside if beside is None else beside[cut:],
            )
            shown = quantity if beside is None else f"{quantity} beside the rate"
            evidence.append(Trend(shown, unit, float(edges_s[cut]), float(edges_s[-1]), slope))
    start_s = starts_s[0] if asked.plateaus else min(asked.least_s, asked.duration_s)
    if asked.not_asked:
        return Window(start_s, asked.duration_s, None, asked.not_asked, tuple(evidence))
    unsteady = [_in_words(trend) for trend in sorted(evidence, key=_is_undecided) if not trend.is_steady]
    why = "; ".join([*unsettled, *unsteady]) or _steady_in_words(evidence)
    return Window(start_s, asked.duration_s, not (unsettled or unsteady), why, tuple(evidence))


def _latencies(requests: Requests) -> tuple[str, Float]:
    """Time to first token where anything streams, else latency. NaN of requests that failed; infinite of those that
    were unfinished, which says "above the median" and not how far."""
    is_streaming = streams(requests)
    metric = "ttft.scheduled" if is_streaming.any() else "latency.scheduled"
    values, is_unfinished = request_values(requests, metric, is_streaming)
    known = np.where(np.isinf(values), np.nan, values)
    return f"{metric} p50", np.where(is_unfinished & ~np.isnan(known), np.inf, known)


def _warm_up(watched: Mapping[str, Float], edges_s: Float, most_s: float | None) -> tuple[int, str]:
    """(bins to cut off, why that takes too long)."""
    longest = 0
    for name, y in watched.items():
        cut = warm_up_bins(y)
        if cut is None:
            return 0, f"{name} had not settled half way from {edges_s[0]:.0f} to {edges_s[-1]:.0f} s"
        took_s = float(edges_s[cut] - edges_s[0])
        if most_s is not None and took_s > most_s:
            return 0, f"{name} took {took_s:.0f} s to settle, and warm_up.most_s is {most_s:g}"
        longest = max(longest, cut)
    return longest, ""


def _is_undecided(trend: Trend) -> bool:
    """A drift that is certain is said first."""
    return trend.slope is None or not trend.slope.drifts


def _in_words(trend: Trend) -> str:
    span_s = trend.end_s - trend.start_s
    slope = trend.slope
    if slope is None:
        return (
            f"{trend.name}: too few bins with answers in {span_s:.0f} s for a trend; {FEWEST_POINTS} s with "
            f"answers to each second's requests are needed at the least"
        )
    if slope.drifts:
        return (
            f"{trend.name} drifts by {_amount(slope.per_s * span_s, trend.unit)} over {span_s:.0f} s, from a level "
            f"of {_amount(slope.level, trend.unit)} (99 % interval of the drift "
            f"{_amount(slope.low * span_s, trend.unit)} to {_amount(slope.high * span_s, trend.unit)})"
        )
    if slope.span_needed_s > MANY_TIMES * span_s:
        return (
            f"{trend.name} wandered: {slope.points} bins over {span_s:.0f} s, each like the one before "
            f"({slope.correlation:.2f} correlated), cannot tell drift from chance; a run many times as long might"
        )
    return (
        f"{trend.name}: {slope.points} bins over {span_s:.0f} s cannot tell; a drift of "
        f"{_amount((slope.high - slope.low) / 2 * span_s, trend.unit)} on a level of "
        f"{_amount(slope.level, trend.unit)} would go unseen; about "
        f"{trend.start_s + slope.span_needed_s:.0f} s would do"
    )


def _steady_in_words(evidence: Sequence[Trend]) -> str:
    return "no drift: " + "; ".join(
        f"{trend.name} {_amount(trend.slope.low * trend.slope.span_s, trend.unit)} to "
        f"{_amount(trend.slope.high * trend.slope.span_s, trend.unit)} over {trend.slope.span_s:.0f} s"
        for trend in evidence
        if trend.slope
    )


def _amount(value: float, unit: str) -> str:
    if unit == "s":
        return f"{1000 * value:.3g} ms" if abs(value) < 1 else f"{value:.3g} s"
    return f"{value:.3g} {unit}"
