"""Fewer points, the same extremes: what a plot of some hundred pixels can show of a long series."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np

from loadtest.records import Float

MAX_BUCKETS = 400
"""Of two points each: the least and the most of the bucket, in their order."""


def grid(end_s: float, steps_s: Iterable[float]) -> Float:
    """Bucket edges over [0, end_s]; a bucket holds at least two samples of the series with the longest step."""
    longest_s = max(steps_s, default=0.0)
    num = MAX_BUCKETS if longest_s <= 0 else int(min(MAX_BUCKETS, max(1, end_s / (2.2 * longest_s))))
    return np.linspace(0.0, max(end_s, 1e-9), num + 1)


def points_of(edges: Float) -> Float:
    """Where the two points of each bucket are drawn, shape [2 * buckets]."""
    width = np.diff(edges)
    return np.column_stack([edges[:-1] + width / 4, edges[:-1] + 3 * width / 4]).ravel()


def extremes(edges: Float, t_s: Float, values: Float) -> Float:
    """Shape [2 * buckets]; NaN where a bucket has no sample. No least or largest value of the series is lost."""
    kept = np.isfinite(values) & np.isfinite(t_s)
    t_s, values = t_s[kept], values[kept]
    bounds = np.searchsorted(t_s, edges, side="left")
    bounds[-1] = len(t_s)
    out = np.full(2 * (len(edges) - 1), np.nan)
    for bucket, (low, high) in enumerate(pairwise(bounds)):
        if high > low:
            part = values[low:high]
            first, second = sorted((int(part.argmin()), int(part.argmax())))
            out[2 * bucket], out[2 * bucket + 1] = part[first], part[second]
    return out


def step_s(t_s: Float) -> float:
    """The usual distance between samples; 0 of fewer than two."""
    return float(np.median(np.diff(t_s))) if len(t_s) > 1 else 0.0
