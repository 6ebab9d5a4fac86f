"""One length, drawn from the plan's distribution of it."""

from __future__ import annotations

import math

import numpy as np

from contracts.recorded_rows import Rows
from loadtest.planning.lengths import Fixed, FromTrace, Length, Lognormal, Mix, Uniform
from loadtest.planning.replay import rows_of


def draw_length(length: Length, rng: np.random.Generator) -> int:
    """Tokens, from 1 on. Not of a trace: `recorded_length` has those."""
    match length:
        case Fixed():
            return length.tokens
        case Uniform():
            return int(rng.integers(length.min, length.max, endpoint=True))
        case Lognormal():
            drawn = math.exp(rng.normal(math.log(length.median), length.sigma))
            return min(max(round(drawn), length.min), length.max)
        case Mix():
            weights = np.array([part.weight for part in length.parts])
            part = length.parts[int(rng.choice(len(weights), p=weights / weights.sum()))]
            return draw_length(part.tokens, rng)
        case FromTrace():
            raise TypeError("a recorded length is looked up, not drawn")


def recorded_length(length: FromTrace, recorded: int) -> int:
    return min(max(round(recorded * length.scale), length.min), length.max)


def rows_for(length: FromTrace, replayed: Rows | None) -> Rows:
    """The trace that it names, else the one that is replayed."""
    if length.trace is not None:
        return rows_of(length.trace)
    if replayed is None:
        raise TypeError("no trace is replayed")  # the plan's check has refused this
    return replayed
