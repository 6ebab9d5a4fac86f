"""From counts to a verdict: what samples on the wrong side of a limit prove."""

from __future__ import annotations

from dataclasses import dataclass

from scipy.stats import beta

from loadtest.measuring.sample_sizes import is_proven, is_refuted, n_needed
from loadtest.verdict import Verdict

ROUNDING = 1e-12
MOST_SAMPLES = 10**9


@dataclass(frozen=True, slots=True)
class Counts:
    """Of one limit: a share of at most 1 - p may lie beyond it."""

    n: int
    n_effective: float
    beyond: int
    """For certain: failed requests are."""
    may_be_beyond: int
    """With those that were unfinished when the run ended."""
    p: float
    confidence: float
    span_s: float
    """How long it took to gather them; says how long a run that proves it would take."""


def prove(counts: Counts, were: str = "were beyond the limit") -> tuple[Verdict, str]:
    """FAIL when it is refuted, or missed by a sample that is large enough; PASS when it is proven; else INVALID.

    The same failures in a larger sample, or more failures in the same, never turn FAIL into PASS: a run whose own
    share is over the limit can't pass.
    """
    n, allowed = counts.n, 1 - counts.p
    if n == 0:
        return Verdict.INVALID, "no request to judge"
    over, may = counts.beyond, counts.may_be_beyond
    shrink = counts.n_effective / n
    said = f"{over:,} of {n:,} requests {were} ({100 * over / n:.3g} %, limit {100 * allowed:.3g} %)"
    if is_refuted(counts.n_effective, over * shrink, counts.p, counts.confidence):
        return Verdict.FAIL, said
    least = n_needed(counts.p, counts.confidence)
    if n < least:
        return Verdict.INVALID, (
            f"n too small: {n:,} requests, {least:,} are needed even if none {were}{_time_for(least, counts)}"
        )
    if over / n > allowed + ROUNDING:
        return Verdict.FAIL, said
    if may / n > allowed + ROUNDING:
        return Verdict.INVALID, (
            f"{said}, and {may - over:,} were unfinished when the run ended; a longer drain_s would tell"
        )
    if is_proven(counts.n_effective, may * shrink, counts.p, counts.confidence):
        return Verdict.PASS, said
    return Verdict.INVALID, f"{said}; {_too_few(counts)}"


def samples_needed(counts: Counts) -> int | None:
    """So many would prove it if they went on as these did. None: no sample would."""
    shrink = counts.n_effective / counts.n if counts.n else 1.0
    share = counts.may_be_beyond / counts.n if counts.n else 0.0
    low, high = 0, n_needed(counts.p, counts.confidence)
    while not is_proven(high, share * high, counts.p, counts.confidence):
        low, high = high, 2 * high
        if high > MOST_SAMPLES:
            return None
    while high - low > 1 + high // 1000:
        middle = (low + high) // 2
        if is_proven(middle, share * middle, counts.p, counts.confidence):
            high = middle
        else:
            low = middle
    return round(high / shrink)


def samples_likely(p: float, confidence: float) -> int | None:
    """So many prove a percentile when half of those that may lie beyond it do: few servers keep one without any."""
    n = 1_000_000
    beyond = round(n * (1 - p) / 2)
    return samples_needed(Counts(n, float(n), beyond, beyond, p, confidence, 0.0))


def share_interval(count: int, n: int, n_effective: float, confidence: float) -> tuple[float, float]:
    """Clopper and Pearson's, on the effective sample: at least `confidence` whatever the true share."""
    k, m, tail = count * n_effective / n, n_effective, (1 - confidence) / 2
    low = 0.0 if k <= 0 else float(beta.ppf(tail, k, m - k + 1))
    high = 1.0 if k >= m else float(beta.ppf(1 - tail, k + 1, m - k))
    return low, high


def _too_few(counts: Counts) -> str:
    needed = samples_needed(counts)
    way = f"about {needed:,} like them would{_time_for(needed, counts)}" if needed else "no number would"
    alike = ""
    if counts.n_effective < 0.95 * counts.n:
        alike = f" (slow ones come in bursts, so they are worth {counts.n_effective:,.0f})"
    return f"{counts.n:,} requests{alike} do not prove it at {100 * counts.confidence:g} %, {way}"


def _time_for(needed: int, counts: Counts) -> str:
    minutes = needed / counts.n * counts.span_s / 60
    return f" ({minutes:.1f} minutes at this rate)" if minutes > 0 else ""
