"""A recorded trace as a schedule: window, time scale, and rate scale by whole sessions.

A session is moved as one: the gaps inside it, which hold the recorded answers and pauses, stay as they were.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from contracts.recorded_rows import Rows, read_rows
from loadtest.planning.load import Replay

Float = npt.NDArray[np.float64]
Int = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Replayed:
    """Moments and rows, shape [n] each, ascending by moment."""

    t_s: Float
    row: Int
    copy: Int


@functools.lru_cache(maxsize=4)
def rows_of(path: Path) -> Rows:
    """Read once a process. Raises TraceUnreadable."""
    return read_rows(path)


def replayed_duration_s(load: Replay) -> float:
    return _window_s(load, rows_of(load.trace)) * load.time_scale


def replayed(load: Replay, rng: np.random.Generator) -> Replayed:
    """Raises ValueError when nothing lies in the window."""
    rows = rows_of(load.trace)
    window_s = _window_s(load, rows)
    inside = np.flatnonzero((rows.t_s >= load.from_s) & (rows.t_s <= load.from_s + window_s))
    if not len(inside):
        raise ValueError(
            f"{load.trace.name}: no request from second {load.from_s:g} to {load.from_s + window_s:g}; it is "
            f"{rows.length_s:g} s long"
        )
    t_s = rows.t_s[inside] - load.from_s
    _, first, member = np.unique(rows.session[inside], return_index=True, return_inverse=True)
    begins_s = t_s[first]
    t_s = t_s + begins_s[member] * (load.time_scale - 1.0)
    end_s = window_s * load.time_scale
    whole, share = divmod(load.rate_scale, 1.0)
    moments, chosen, copies = [], [], []
    for copy in range(int(whole) + (share > 0)):
        is_kept = np.ones(len(begins_s), dtype=bool) if copy < whole else rng.random(len(begins_s)) < share
        moved_s = (
            np.zeros(len(begins_s)) if copy == 0 else _moved(begins_s * load.time_scale, end_s, load, rng)
        )
        keeps = is_kept[member]
        moments.append((t_s + moved_s[member])[keeps])
        chosen.append(inside[keeps])
        copies.append(np.full(int(keeps.sum()), copy, dtype=np.int64))
    at_s, row, of_copy = np.concatenate(moments), np.concatenate(chosen), np.concatenate(copies)
    lasts = at_s <= end_s
    order = np.argsort(at_s[lasts], kind="stable")
    return Replayed(at_s[lasts][order], row[lasts][order], of_copy[lasts][order])


def _moved(begins_s: Float, end_s: float, load: Replay, rng: np.random.Generator) -> Float:
    """How far each session of a copy is moved; one that would begin outside the window is mirrored back in."""
    wanted_s = begins_s + rng.uniform(-load.spread_s, load.spread_s, len(begins_s))
    mirrored_s = np.where(wanted_s < 0, -wanted_s, wanted_s)
    mirrored_s = np.where(mirrored_s > end_s, 2 * end_s - mirrored_s, mirrored_s)
    return np.asarray(np.clip(mirrored_s, 0, end_s) - begins_s)


def _window_s(load: Replay, rows: Rows) -> float:
    rest_s = max(0.0, rows.length_s - load.from_s)
    return rest_s if load.span_s is None else min(load.span_s, rest_s)


def ks_distance(offered_s: Float, recorded_s: Float) -> float:
    """Kolmogorov-Smirnov: the largest gap between the shares of both that have come by any moment; 0 to 1.

    Either may be unsorted. Raises ValueError when one is empty.
    """
    if not len(offered_s) or not len(recorded_s):
        raise ValueError(
            f"{len(offered_s)} offered and {len(recorded_s)} recorded arrivals; needs one of each"
        )
    offered, recorded = np.sort(offered_s), np.sort(recorded_s)
    moments = np.concatenate((offered, recorded))
    offered_share = np.searchsorted(offered, moments, side="right") / len(offered)
    recorded_share = np.searchsorted(recorded, moments, side="right") / len(recorded)
    return float(np.abs(offered_share - recorded_share).max())
