"""Quantities of a run per bin of time: what steady state is tested on and time plots are made of."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from loadtest.curve import Series
from loadtest.records import Float, Requests, Status


def edges(start_s: float, end_s: float, bin_s: float) -> Float:
    """Whole bins from the start; what is left over at the end is in none. Shape [bins + 1]."""
    return start_s + bin_s * np.arange(int((end_s - start_s) / bin_s + 1e-9) + 1)


def middles(edges_s: Float) -> Float:
    return (edges_s[1:] + edges_s[:-1]) / 2


def medians(t_s: Float, values: Float, edges_s: Float) -> Float:
    """Shape [bins]; infinite values count, NaN do not, and NaN where a bin has none. `t_s` ascends."""
    known = ~np.isnan(values)
    t_s, values = t_s[known], values[known]
    cuts = np.searchsorted(t_s, edges_s)
    found = np.full(len(edges_s) - 1, np.nan)
    for place, (begin, end) in enumerate(pairwise(cuts)):
        if end > begin:
            found[place] = np.partition(values[begin:end], (end - begin - 1) // 2)[(end - begin - 1) // 2]
    return found


def rate(t_s: Float, edges_s: Float) -> Float:
    """Events a second per bin, shape [bins]. `t_s` ascends."""
    counts: Float = np.diff(np.searchsorted(t_s, edges_s)) / np.diff(edges_s)
    return counts


def in_flight(requests: Requests, edges_s: Float) -> Float:
    """Mean number of requests sent and not done, shape [bins]; exact, from the rows."""
    was_sent = (requests.status != Status.NOT_SENT) & np.isfinite(requests.t_sent_s + requests.t_last_s)
    began = _seconds_since(np.sort(requests.t_sent_s[was_sent]), edges_s)
    ended = _seconds_since(np.sort(requests.t_last_s[was_sent]), edges_s)
    means: Float = np.diff(began - ended) / np.diff(edges_s)
    return means


def most_in_flight(requests: Requests, start_s: float, end_s: float) -> int:
    """At any moment in [start_s, end_s)."""
    was_sent = (requests.status != Status.NOT_SENT) & np.isfinite(requests.t_sent_s + requests.t_last_s)
    began, ended = np.sort(requests.t_sent_s[was_sent]), np.sort(requests.t_last_s[was_sent])
    moments = np.append(began[(began >= start_s) & (began < end_s)], start_s)
    there = np.searchsorted(began, moments, side="right") - np.searchsorted(ended, moments, side="right")
    return int(there.max())


def _seconds_since(times_s: Float, at_s: Float) -> Float:
    """Sum over all times before `at_s` of at_s - time: the integral of how many there were."""
    before = np.searchsorted(times_s, at_s)
    sums = np.concatenate(([0.0], np.cumsum(times_s)))
    spent: Float = before * at_s - sums[before]
    return spent


def series_means(series: Sequence[Series], edges_s: Float) -> Float:
    """The sum of all series, each averaged per bin; NaN where none has a sample. Shape [bins]."""
    total = np.full(len(edges_s) - 1, np.nan)
    for one in series:
        known = np.isfinite(one.values)
        t_s, values = one.t_s[known], one.values[known]
        cuts = np.searchsorted(t_s, edges_s)
        sums = np.concatenate(([0.0], np.cumsum(values)))
        counts = np.diff(cuts)
        with np.errstate(invalid="ignore", divide="ignore"):
            means = np.where(counts > 0, np.diff(sums[cuts]) / counts, np.nan)
        total = np.where(np.isnan(total), means, np.where(np.isnan(means), total, total + means))
    return total
