"""Load over time: how many requests came when."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

SEED = 7


class TraceError(Exception):
    """A trace can't be read. The text says which, where, and what would help."""


class TraceMissing(TraceError):
    """There is no such file here."""


@dataclass(frozen=True)
class Trace:
    """Requests over time, from 0 s on."""

    name: str
    start_unix_s: float
    """When second 0 was, for seasons and reservations."""
    bin_s: float
    counts: Floats
    """Requests in each bin."""
    known: Bools
    """False: nothing was recorded in this bin. `counts` bridges it, no figure counts it."""
    arrivals_s: Floats | None = None
    """Each request's own moment, where the trace has it."""

    @property
    def length_s(self) -> float:
        return len(self.counts) * self.bin_s

    def num_ticks(self, tick_s: float) -> int:
        """The last one may be an incomplete tick: no request is left out."""
        return math.ceil(self.length_s / tick_s - 1e-9)

    @property
    def num_requests(self) -> float:
        return float(self.counts[self.known].sum())

    def rates(self, period_s: float) -> Floats:
        """Requests per second, the mean of each period of known bins; an incomplete last period is left out."""
        per = max(1, round(period_s / self.bin_s))
        whole = len(self.counts) // per * per
        if not whole:
            return np.array([self.counts.mean() / self.bin_s])
        rates = self.counts[:whole].reshape(-1, per).mean(axis=1) / self.bin_s
        return np.asarray(rates[self.known[:whole].reshape(-1, per).all(axis=1)], dtype=np.float64)

    def rate_at(self, at_s: float) -> float:
        """Requests per second in the minute around a moment; where bins are wider, in its bin."""
        per = max(1, round(60.0 / self.bin_s))
        first = min(int(at_s / self.bin_s), len(self.counts) - 1) // per * per
        return float(self.counts[first : first + per].mean()) / self.bin_s

    def peak_per_s(self) -> float:
        """The busiest minute's mean rate; for bins wider than a minute, the busiest bin's."""
        return float(self.rates(60.0).max())

    def later(self, by_s: float) -> Trace:
        """The same requests, all so much later against the scaler's clock. Raises TraceError without moments."""
        if self.arrivals_s is None:
            raise TraceError(f"{self.name}: has bins, not each request's moment; a seed deals them out anew")
        moments = self.arrivals_s + by_s
        counts = np.bincount((moments // self.bin_s).astype(int)).astype(np.float64)
        known = np.ones(len(counts), dtype=bool)
        return Trace(self.name, self.start_unix_s - by_s, self.bin_s, counts, known, moments)

    def per_tick(self, tick_s: float, seed: int = SEED) -> Floats:
        """Requests in each tick: the recorded moments where there are any.

        A bin of several ticks is dealt out by chance, each request for itself: cut evenly, the load would be
        smoother than any real one. Each bin keeps its sum, and a seed its draw.
        """
        edges = np.arange(self.num_ticks(tick_s) + 1) * tick_s
        if self.arrivals_s is not None:
            return np.diff(np.searchsorted(self.arrivals_s, edges)).astype(np.float64)
        per_bin = round(self.bin_s / tick_s)
        if per_bin > 1 and math.isclose(per_bin * tick_s, self.bin_s):
            dealt = np.random.default_rng(seed).multinomial(
                np.rint(self.counts).astype(np.int64), np.full(per_bin, 1 / per_bin)
            )
            return dealt.ravel().astype(np.float64)
        total = np.concatenate(([0.0], np.cumsum(self.counts)))
        return np.diff(np.interp(edges, np.arange(len(total)) * self.bin_s, total))

    def known_ticks(self, tick_s: float) -> Bools:
        bins = (np.arange(self.num_ticks(tick_s)) * tick_s / self.bin_s + 1e-9).astype(int)
        return np.asarray(self.known[bins])


def of_counts(name: str, counts: Floats, bin_s: float, start_unix_s: float = 0.0) -> Trace:
    return Trace(name, start_unix_s, bin_s, counts, np.ones(len(counts), dtype=bool))


def of_arrivals(name: str, arrivals_s: Floats, start_unix_s: float = 0.0, bin_s: float = 1.0) -> Trace:
    """Moments in any order; second 0 is the first one. Raises TraceError when there is none."""
    if not len(arrivals_s):
        raise TraceError(f"{name}: no request in it")
    ordered = np.sort(arrivals_s) - arrivals_s.min()
    counts = np.bincount((ordered // bin_s).astype(int)).astype(np.float64)
    return Trace(name, start_unix_s, bin_s, counts, np.ones(len(counts), dtype=bool), ordered)


def peak_of(factor: float, base_per_s: float, before_s: float, peak_s: float, after_s: float) -> Trace:
    """Flat load with one known peak: `base_per_s`, then `factor` times it for `peak_s`, then as before."""
    bin_s = 60.0
    spans = ((before_s, 1.0), (peak_s, factor), (after_s, 1.0))
    rates = np.concatenate([np.full(round(span / bin_s), times) for span, times in spans])
    return of_counts(f"peak x{factor:g}", rates * base_per_s * bin_s, bin_s)
