"""Whether the samples are whole: a source that was silent while the load ran has not seen what happened. Pure."""

from __future__ import annotations

import numpy as np

from loadtest.curve import Curve

MAX_GAP_S = 2.0
"""An idle machine misses none at 4 Hz; a busy one has been seen to be some hundred milliseconds late."""
MUST_BE_WHOLE = {"node": "pool.used_bytes"}
"""A source, and a series that each of its samples has. Peaks between two samples are the node's alone to see."""


def source_problems(curve: Curve, ended_s: float) -> list[str]:
    """`ended_s`: when the run's last answer came, after t0."""
    problems = []
    for source in curve.sources:
        name = MUST_BE_WHOLE.get(source.name)
        if name is None:
            continue
        why = source.last_error or "no error was told"
        if not source.samples:
            problems.append(f"memory source {source.name} gave no sample: {why}")
        elif hole := _longest_hole(curve, name, ended_s):
            problems.append(
                f"memory source {source.name} was silent from {hole[0]:.1f} to {hole[1]:.1f} s: {why}"
            )
    return problems


def source_notes(curve: Curve) -> list[str]:
    """Of all sources: how often they failed."""
    return [
        f"source {one.name}: {one.failures} of {one.failures + one.samples} tries failed: {one.last_error}"
        for one in curve.sources
        if one.failures
    ]


def _longest_hole(curve: Curve, name: str, ended_s: float) -> tuple[float, float] | None:
    """(from, to) within the run; None: no hole is too long."""
    (series,) = curve.named(name)
    inside = series.t_s[(series.t_s > 0) & (series.t_s < ended_s)]
    moments = np.concatenate([[0.0], inside, [ended_s]])
    longest = int(np.argmax(np.diff(moments)))
    start_s, end_s = float(moments[longest]), float(moments[longest + 1])
    return (start_s, end_s) if end_s - start_s > MAX_GAP_S else None
