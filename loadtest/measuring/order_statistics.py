"""The k-th smallest of many values, exactly. Small arrays are sorted; of large ones only a neighbourhood is."""

from __future__ import annotations

import math

import numpy as np

from loadtest.records import Float

SORTED_BELOW = 2_000_000
PROBES = 100_000
"""A neighbourhood is five standard deviations of the rank in so many evenly spaced values: about 1 % of all."""


class OrderStatistics:
    """Values may be infinite, not NaN. Sorting 50 million takes 13 s here; three neighbourhoods take 1 s."""

    def __init__(self, values: Float) -> None:
        self._is_sorted = len(values) < SORTED_BELOW
        self._values = np.sort(values) if self._is_sorted else values
        self._probes = np.sort(values[:: max(1, len(values) // PROBES)])
        self._neighbourhoods: list[tuple[int, Float]] = []
        """(how many lie below, the sorted values of the neighbourhood)"""

    def __len__(self) -> int:
        return len(self._values)

    def at(self, rank: int) -> float:
        """Ranks count from 1. Raises IndexError outside 1 ... n."""
        if not 1 <= rank <= len(self):
            raise IndexError(f"rank {rank}, must be from 1 to {len(self)}")
        if self._is_sorted:
            return float(self._values[rank - 1])
        for below, inside in self._neighbourhoods:
            if below < rank <= below + len(inside):
                return float(inside[rank - 1 - below])
        return self._look_closely(rank)

    def at_share(self, p: float) -> float:
        """The smallest value with at least p of all at or below it."""
        return self.at(rank_of(len(self), p))

    def _look_closely(self, rank: int) -> float:
        share, probes = rank / len(self), len(self._probes)
        slack = 5 * math.sqrt(probes * share * (1 - share)) + 5
        while True:
            first, last = math.floor(share * probes - slack), math.ceil(share * probes + slack)
            low = self._probes[first] if first >= 0 else -math.inf
            high = self._probes[last] if last < probes else math.inf
            below = int(np.count_nonzero(self._values < low))
            inside = np.sort(self._values[(self._values >= low) & (self._values <= high)])
            if below < rank <= below + len(inside):
                self._neighbourhoods.append((below, inside))
                return float(inside[rank - 1 - below])
            slack *= 4


def rank_of(n: int, p: float) -> int:
    """From 1: of n sorted values, the first with at least p of them at or below it."""
    # 0.999 * 1000 is 999.0000000000001 in floats, whose ceiling is the maximum.
    return min(n, max(1, math.ceil(n * p * (1 - 1e-12))))
