"""Calls of one model or version in one step, as counts: what percentiles of minutes are merged from.

Times go into buckets that grow by 2 %, so a percentile is right within 1 %. Merging buckets is exact, where
averaging percentiles would not be. Adding a call costs a microsecond however many there are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from ledger.calls import CallRow

GROWTH = 1.02
_LOG_GROWTH = math.log(GROWTH)
LEAST_S = 1e-5


class Tally:
    """Counts, and the times of calls that ended well."""

    __slots__ = ("latencies", "num_calls", "num_failed", "num_tokens", "ttfts")

    def __init__(self) -> None:
        self.num_calls = 0
        self.num_failed = 0
        self.num_tokens = 0
        self.ttfts: dict[int, int] = {}
        self.latencies: dict[int, int] = {}

    def add(self, row: CallRow) -> None:
        self.num_calls += 1
        self.num_tokens += row.output_tokens or 0
        if row.outcome == "ok":
            _count(self.latencies, row.duration_s)
            if row.ttft_s is not None:
                _count(self.ttfts, row.ttft_s)
        elif row.outcome == "error":
            self.num_failed += 1


def merged(tallies: Iterable[Tally]) -> Tally:
    whole = Tally()
    for one in tallies:
        whole.num_calls += one.num_calls
        whole.num_failed += one.num_failed
        whole.num_tokens += one.num_tokens
        for into, buckets in ((whole.ttfts, one.ttfts), (whole.latencies, one.latencies)):
            for bucket, count in buckets.items():
                into[bucket] = into.get(bucket, 0) + count
    return whole


def percentile(buckets: dict[int, int], p: float) -> float | None:
    """The middle of the bucket that holds it. None without values, and for a tail that so few can't tell."""
    n = sum(buckets.values())
    if n == 0 or (p > 0.5 and n * (1 - p) < 1 - 1e-9):
        return None
    rank = max(1, math.ceil(n * p - 1e-9))
    for bucket in sorted(buckets):
        rank -= buckets[bucket]
        if rank <= 0:
            return LEAST_S * math.exp(_LOG_GROWTH * (bucket + 0.5))
    raise AssertionError("the counts add up to n")


def _count(buckets: dict[int, int], seconds: float) -> None:
    bucket = int(math.log(seconds / LEAST_S) / _LOG_GROWTH) if seconds > LEAST_S else 0
    buckets[bucket] = buckets.get(bucket, 0) + 1
