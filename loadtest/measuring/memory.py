"""What the sampled curve says: levels, peaks between samples, counters, growth, and what did not return."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadtest.curve import Curve, Series
from loadtest.measuring import bins
from loadtest.measuring.samples import Scope
from loadtest.measuring.slopes import Slope, slope_of
from loadtest.records import Float

BIN_S = 5.0
FEWEST_BINS = 24
LONGEST_HOLE_S = 5.0
SETTLE_S = 1.5
"""Before something is called a leak: an idle worker gives its free blocks back after 0.5 s."""

HIGH_WATER = {"kv.used_blocks": "kv.high_water_blocks", "pool.used_bytes": "pool.high_water_bytes"}
"""What the stack itself remembers between two samples: 50 ms at the ceiling are seen at any sampling rate."""


def in_scope(curve: Curve, name: str, scope: Scope) -> tuple[Series, ...]:
    """Series that have all of the scope's labels and at least one sample."""
    return tuple(
        one for one in curve.named(name) if set(scope) <= set(one.labels) and np.isfinite(one.values).any()
    )


def peak(curve: Curve, name: str, scope: Scope) -> float | None:
    """Highest sum over all series at one moment, high-water marks included; None without a sample.

    Marks of several models may lie at different moments between two samples, so their sum is an upper bound.
    """
    tops = [_sum_over_time(in_scope(curve, each, scope)) for each in _with_high_water(name)]
    return max((float(top.max()) for _, top in tops if len(top)), default=None)


def used_ratios(
    curve: Curve, used: str, total: str, scope: Scope, *, with_high_water: bool
) -> list[tuple[Float, Float]]:
    """(t_s, used / total) of each series: of every model, its samples and, if asked for, its high-water marks."""
    found = []
    for name in _with_high_water(used) if with_high_water else (used,):
        for one in in_scope(curve, name, scope):
            for whole in in_scope(curve, total, one.labels):
                at = np.clip(np.searchsorted(whole.t_s, one.t_s, side="right") - 1, 0, None)
                with np.errstate(invalid="ignore", divide="ignore"):
                    ratio = one.values / whole.values[at]
                known = np.isfinite(ratio)
                found.append((one.t_s[known], ratio[known]))
    return found


def hole(curve: Curve, name: str, scope: Scope, start_s: float, end_s: float) -> str:
    """In words: from when to when nothing was sampled for so long that no figure of the run holds; "" if never."""
    series = in_scope(curve, name, scope)
    if not series:
        return f"no data: `{name}` was never sampled in this scope"
    t_s = np.unique(np.concatenate([one.t_s[np.isfinite(one.values)] for one in series]))
    period_s = float(np.median(np.diff(t_s))) if len(t_s) > 1 else 0.0
    stops = np.concatenate(([start_s], t_s[(t_s > start_s) & (t_s < end_s)], [max(start_s, end_s)]))
    longest = int(np.argmax(np.diff(stops)))
    if stops[longest + 1] - stops[longest] <= max(LONGEST_HOLE_S, 3 * period_s):
        return ""
    return f"no data: `{name}` has no sample from {stops[longest]:.1f} to {stops[longest + 1]:.1f} s"


def counted(curve: Curve, name: str, scope: Scope) -> float | None:
    """How far counters rose over the whole run; one that falls began again from 0. None without two samples."""
    rises = []
    for one in in_scope(curve, name, scope):
        steps = np.diff(one.values[np.isfinite(one.values)])
        began_again = one.values[np.isfinite(one.values)][1:][steps < 0]
        if len(steps):
            rises.append(float(steps[steps > 0].sum() + began_again.sum()))
    return sum(rises) if rises else None


def level(curve: Curve, name: str, scope: Scope, start_s: float, end_s: float) -> tuple[Float, Float]:
    """(t_s, sum over all series) in [start_s, end_s)."""
    t_s, total = _sum_over_time(in_scope(curve, name, scope))
    inside = (t_s >= start_s) & (t_s < end_s)
    return t_s[inside], total[inside]


def growth(curve: Curve, name: str, scope: Scope, start_s: float, end_s: float, floor: float) -> Slope | None:
    """Of the sum of all series, by bins. `floor`: the least level that a drift is compared with."""
    bin_s = min(BIN_S, max(1.0, (end_s - start_s) / FEWEST_BINS))
    edges_s = bins.edges(start_s, end_s, bin_s)
    t_s, total = level(curve, name, scope, start_s, end_s)
    if not len(t_s):
        return None
    whole = Series(name, (), "", t_s, total)
    return slope_of(bins.middles(edges_s), bins.series_means((whole,), edges_s), floor=floor)


@dataclass(frozen=True, slots=True)
class Returned:
    """A level before the first request and after the last."""

    before: float
    after: float
    """The lowest of the samples after the drain: what is only late is no leak."""
    samples_after: int
    requests: int
    """How many were sent in between."""

    @property
    def left(self) -> float:
        return self.after - self.before

    @property
    def per_request(self) -> float | None:
        return self.left / self.requests if self.requests else None


def returned(
    curve: Curve, name: str, scope: Scope, first_s: float, last_s: float, requests: int
) -> Returned | None:
    """None without a sample before the first request, or without one `SETTLE_S` after the last has ended."""
    t_s, total = _sum_over_time(in_scope(curve, name, scope))
    before, after = total[t_s < first_s], total[t_s > last_s]
    if not len(before) or not len(after) or t_s[-1] < last_s + SETTLE_S:
        return None
    return Returned(float(before[-1]), float(after.min()), len(after), requests)


def _with_high_water(name: str) -> tuple[str, ...]:
    return (name, HIGH_WATER[name]) if name in HIGH_WATER else (name,)


def _sum_over_time(series: Sequence[Series]) -> tuple[Float, Float]:
    """At every moment at which any has a sample: the sum of each one's last value.

    A series counts between its first and its last sample, so a process that ended holds nothing afterwards.
    """
    if not series:
        return np.zeros(0), np.zeros(0)
    t_s = np.unique(np.concatenate([one.t_s[np.isfinite(one.values)] for one in series]))
    total = np.zeros(len(t_s))
    for one in series:
        known = np.isfinite(one.values)
        times, values = one.t_s[known], one.values[known]
        at = np.searchsorted(times, t_s, side="right") - 1
        is_there = (at >= 0) & (t_s <= times[-1] + _grace_s(times))
        total += np.where(is_there, values[np.clip(at, 0, None)], 0.0)
    return t_s, total


def _grace_s(times: Float) -> float:
    """Two sampling periods: series of one source are not sampled at the very same moment."""
    return 2 * float(np.median(np.diff(times))) if len(times) > 1 else 0.0
