"""A percentile with its interval, or the word that there are too few samples for one."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from loadtest.measuring.order_statistics import OrderStatistics
from loadtest.measuring.sample_sizes import interval_ranks, n_effective, n_needed
from loadtest.measuring.samples import Bool, Samples
from loadtest.records import Float

DEFAULT_CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Quantile:
    """`value` is None when it may not be said: n below `n_needed`, or so many failed that it is infinite."""

    p: float
    """In (0, 1)."""
    confidence: float
    value: float | None
    is_lower_bound: bool
    """The percentile is `value` or more: requests that were unfinished at the run's end would have decided it."""
    low: float | None
    high: float | None
    """None where n is too small for a bound, or where it is infinite."""
    n: int
    n_effective: float
    n_needed: int
    is_infinite: bool
    """The failed requests alone are more than 1 - p."""

    @property
    def is_shown(self) -> bool:
        return self.n >= self.n_needed


class Ranked:
    """Values by rank, twice: the unfinished at what is known of them, and at infinity."""

    def __init__(self, values: Float, is_lower_bound: Bool) -> None:
        self.known = OrderStatistics(values)
        self.at_worst = self.known
        if is_lower_bound.any():
            self.at_worst = OrderStatistics(np.where(is_lower_bound, np.inf, values))

    def quantile(
        self,
        p: float,
        confidence: float,
        n: int,
        effective: float,
        ranks: tuple[int | None, int | None],
    ) -> Quantile:
        """`n` counts what is independent (requests); `ranks` are the interval's, among all values."""
        value, needed = self.known.at_share(p), n_needed(p, confidence)
        low_rank, high_rank = ranks
        return Quantile(
            p=p,
            confidence=confidence,
            value=_finite(value) if n >= needed else None,
            is_lower_bound=self.at_worst.at_share(p) != value,
            low=_finite(self.known.at(low_rank)) if low_rank else None,
            high=_finite(self.at_worst.at(high_rank)) if high_rank else None,
            n=n,
            n_effective=effective,
            n_needed=needed,
            is_infinite=math.isinf(value),
        )


class SampleQuantiles:
    """Percentiles of one metric, with intervals by order statistics; sorts once."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples
        self._ranked = Ranked(samples.values, samples.is_lower_bound) if len(samples) else None

    def at(self, p: float, confidence: float = DEFAULT_CONFIDENCE) -> Quantile:
        """The smallest value with at least p of all at or below it. Raises ValueError for p outside (0, 1)."""
        check_percentile(p)
        if self._ranked is None:
            return no_quantile(p, confidence)
        n = len(self._samples)
        effective = n_effective(self._samples.values > self._ranked.known.at_share(p))
        ranks = interval_ranks(n, p, confidence, effective)
        return self._ranked.quantile(p, confidence, n, effective, ranks)


def no_quantile(p: float, confidence: float) -> Quantile:
    """What can be said without a sample."""
    return Quantile(p, confidence, None, False, None, None, 0, 0.0, n_needed(p, confidence), False)


def check_percentile(p: float) -> None:
    if not 0 < p < 1:
        raise ValueError(f"percentile {100 * p:g}, must be above 0 and below 100")


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
