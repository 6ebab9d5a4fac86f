"""How many samples a percentile needs, and how many there are when they depend on one another."""

from __future__ import annotations

import math
from functools import cache, lru_cache

import numpy as np
import numpy.typing as npt
from scipy.special import bdtr, bdtrc
from scipy.stats import binom

Float = npt.NDArray[np.float64]


def is_proven(n: float, over: float, p: float, confidence: float) -> bool:
    """Whether `over` of `n` samples beyond a limit show at `confidence` that at most 1 - p of all are.

    MLPerf's early stopping with d = 0: I(p; n - over, over + 1) <= 1 - confidence, which is the chance that a
    true share of exactly 1 - p leaves so few (inference_rules.adoc, "Early Stopping"; early_stopping.cc).
    """
    return n > 0 and bool(bdtr(min(math.ceil(over), math.floor(n)), math.floor(n), 1 - p) <= 1 - confidence)


def is_refuted(n: float, over: float, p: float, confidence: float) -> bool:
    """Whether so many beyond the limit show at `confidence` that more than 1 - p of all are."""
    return n > 0 and over >= 1 and bool(bdtrc(math.floor(over) - 1, math.floor(n), 1 - p) <= 1 - confidence)


@cache
def n_needed(p: float, confidence: float, over: int = 0) -> int:
    """The fewest samples, `over` of them beyond the limit, that prove the percentile p in (0, 1).

    >>> n_needed(0.99, 0.99), n_needed(0.99, 0.99, 2), n_needed(0.999, 0.95)
    (459, 838, 2995)
    """
    low, high = over, max(16, 2 * over)
    while not is_proven(high, over, p, confidence):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if is_proven(middle, over, p, confidence):
            high = middle
        else:
            low = middle
    return high


def lag_1_correlation(values: npt.NDArray[np.generic]) -> float:
    """Of neighbours in time; 0 for fewer than three values or values that are all the same."""
    if len(values) < 3:
        return 0.0
    centred = values.astype(np.float64)
    centred -= centred.mean()
    power = float(centred @ centred)
    # What is left of equal values after subtracting their mean is rounding.
    if power <= 1e-18 * len(values):
        return 0.0
    return float(centred[1:] @ centred[:-1]) / power


def n_effective(is_beyond: npt.NDArray[np.bool_]) -> float:
    """n (1 - r) / (1 + r), r the lag-1 correlation of "is beyond the percentile", in order of intended starts.

    One stall that makes fifty requests slow is one event, not fifty. r counts when it is positive and larger
    than chance gives in independent samples (1.645 / sqrt n, one in twenty).
    """
    n = len(is_beyond)
    correlation = lag_1_correlation(is_beyond)
    if n == 0 or correlation <= 1.645 / math.sqrt(n):
        return float(n)
    return n * (1 - correlation) / (1 + correlation)


def interval_ranks(n: int, p: float, confidence: float, effective: float) -> tuple[int | None, int | None]:
    """Ranks from 1 of the order statistics between which the percentile lies with `confidence`; None: no bound.

    Binomial, both sides (1 - confidence) / 2. With fewer effective samples the ranks move apart accordingly.
    """
    m = math.floor(effective)
    if m < 1:
        return None, None
    low, high = _binomial_ends(m, p, (1 - confidence) / 2)
    # In whole numbers: 122 * (126 / 122) is 126.00000000000001, whose ceiling is no rank.
    low_rank = low * n // m if low >= 1 else None
    high_rank = -(-high * n // m) if high <= m else None
    return low_rank, high_rank


@lru_cache(maxsize=10_000)
def _binomial_ends(n: int, p: float, tail: float) -> tuple[int, int]:
    return int(binom.ppf(tail, n, p)), int(binom.ppf(1 - tail, n, p)) + 1
