"""Inter-token gaps: pooled over requests, with intervals that resample whole requests.

Gaps inside one request depend on one another, so the pooled count says nothing of certainty. The interval is
Woodruff's (1952): the share of gaps beyond the estimate is resampled by request, and what that share may be is
read off the pooled distribution as values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from loadtest.measuring.quantiles import DEFAULT_CONFIDENCE, Quantile, Ranked, check_percentile, no_quantile
from loadtest.measuring.samples import Bool, open_gap
from loadtest.records import Float, Int, Requests, Status

RESAMPLES = 1000
MAX_BLOCKS = 2000
"""Above so many requests neighbours are resampled together: it is faster, and keeps what ties them."""
FEWEST_REQUESTS = 20
"""Resampling fewer gives intervals that are too narrow."""


@dataclass(frozen=True)
class Gaps:
    """All gaps of some requests. A failed request is one infinite gap, an unfinished one the gap it was in."""

    values: Float
    """Shape [n_gaps], request after request in order of intended starts."""
    is_lower_bound: Bool
    begins: Int
    """Shape [n_requests]: where each request's gaps begin; each has at least one."""
    rows: Int
    """Shape [n_requests]: which rows they are."""
    n_good: int
    """How many of them ended well: only they add to what a sample proves."""
    tokens_per_chunk: float | None
    """Mean over all chunks after a request's first; None without any."""

    @property
    def n_requests(self) -> int:
        return len(self.begins)

    @cached_property
    def counts(self) -> Int:
        """Gaps of each request."""
        return np.diff(self.begins, append=len(self.values))

    @cached_property
    def ranked(self) -> Ranked:
        return Ranked(self.values, self.is_lower_bound)

    def beyond(self, limit: float, *, limit_itself: bool, with_unknown: bool) -> Int:
        """Of each request: how many gaps lie beyond the limit. `with_unknown`: lower bounds may, and count."""
        is_over = self.values >= limit if limit_itself else self.values > limit
        if with_unknown:
            is_over |= self.is_lower_bound
        return np.add.reduceat(is_over, self.begins, dtype=np.int64)


def gaps_of(requests: Requests, chosen: Bool) -> Gaps:
    """Of the chosen rows, shape [n]; their users stream."""
    chosen = chosen & (requests.status != Status.NOT_SENT)
    begins, ends = requests.chunk_offsets[:-1], requests.chunk_offsets[1:]
    is_ok = requests.status == Status.OK
    has_gaps = chosen & is_ok & (ends - begins >= 2)
    rows = np.flatnonzero(has_gaps | (chosen & ~is_ok))
    counts = np.where(is_ok[rows], (ends - begins)[rows] - 1, 1)
    # +1 where a chosen request's gaps begin and -1 after its last: the running sum is 1 inside.
    marks = np.zeros(len(requests.chunk_times_s) + 1, dtype=np.int8)
    marks[begins[has_gaps]] += 1
    marks[ends[has_gaps] - 1] -= 1
    inside = np.cumsum(marks[:-1], dtype=np.int8).astype(bool)[: max(0, len(marks) - 2)]
    is_measured = np.repeat(is_ok[rows], counts)
    values, lower_bound = np.empty(len(is_measured)), np.zeros(len(is_measured), dtype=bool)
    values[is_measured] = np.diff(requests.chunk_times_s)[inside]
    is_unfinished = requests.status[rows] == Status.CENSORED
    ended = ~is_ok[rows]
    values[~is_measured] = np.where(is_unfinished, open_gap(requests)[rows], np.inf)[ended]
    lower_bound[~is_measured] = is_unfinished[ended]
    tokens = requests.chunk_tokens[1:][inside]
    return Gaps(
        values=values,
        is_lower_bound=lower_bound,
        begins=np.concatenate(([0], np.cumsum(counts)[:-1])) if len(rows) else np.zeros(0, dtype=np.int64),
        rows=rows,
        n_good=int(has_gaps.sum()),
        tokens_per_chunk=float(tokens.mean()) if len(tokens) else None,
    )


def gap_quantile(gaps: Gaps, p: float, confidence: float = DEFAULT_CONFIDENCE) -> Quantile:
    """`n` and `n_needed` count whole requests that ended well. Raises ValueError for p outside (0, 1)."""
    check_percentile(p)
    if gaps.n_requests == 0:
        return no_quantile(p, confidence)
    n, total = gaps.n_good, len(gaps.values)
    beyond = gaps.beyond(gaps.ranked.known.at_share(p), limit_itself=False, with_unknown=False)
    shares = resampled_shares(beyond, gaps.counts)
    low_share, high_share = np.quantile(shares, [(1 - confidence) / 2, (1 + confidence) / 2])
    share = beyond.sum() / total
    low_rank = math.floor(total * (p - (share - low_share)))
    high_rank = math.ceil(total * (p + (high_share - share)))
    is_bounded = n >= FEWEST_REQUESTS
    ranks = (
        low_rank if is_bounded and low_rank >= 1 else None,
        high_rank if is_bounded and high_rank <= total else None,
    )
    return gaps.ranked.quantile(p, confidence, n, float(n), ranks)


def resampled_shares(beyond: Int, counts: Int) -> Float:
    """Shape [RESAMPLES]: the share of gaps beyond, requests drawn with replacement (fixed seed)."""
    blocks = min(len(counts), MAX_BLOCKS)
    starts = np.linspace(0, len(counts), blocks, endpoint=False, dtype=np.int64)
    beyond, counts = np.add.reduceat(beyond, starts), np.add.reduceat(counts, starts)
    weights = np.random.default_rng(20261201).multinomial(blocks, np.full(blocks, 1 / blocks), size=RESAMPLES)
    return (weights @ beyond) / (weights @ counts)
