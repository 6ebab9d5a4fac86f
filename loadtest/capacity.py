"""The search for the highest rate at which a plan still passes: which rate is tried next, and when it is enough.

Pure: a probe is a whole run with its verdict, made by whoever asks. INVALID is no PASS: what could not be shown at
a rate is not promised for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from loadtest.verdict import Verdict

GROWTH = 1.6
"""From a rate that passes to the next, while none has failed."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One run at one rate."""

    rate_per_s: float
    verdict: Verdict
    why: str
    """The first line that did not pass; empty when all did."""
    concurrency: float | None = None
    """Requests in flight on average; None when it was not measured."""
    utilization: float | None = None
    """Of the model's ready instances, as the scaler reckons it; None without a scaler."""


@dataclass
class RateSearch:
    """Up in steps until a rate does not pass, then halving (in ratio) between the two.

    `precision`: enough when the lowest rate that did not pass is at most so much above the highest that did: 0.15
    is 15 %. A rate below `least_per_s` is not tried: nothing passes.
    """

    first_per_s: float
    precision: float = 0.15
    max_probes: int = 10
    least_per_s: float = 0.05
    probes: list[Probe] = field(default_factory=list)

    def next_rate(self) -> float | None:
        """None: enough is known, or `max_probes` are spent."""
        if len(self.probes) >= self.max_probes or self.is_settled:
            return None
        passed, not_passed = self.passed, self.not_passed
        if passed is None and not_passed is None:
            return self.first_per_s
        if not_passed is None and passed is not None:
            return _rounded(passed.rate_per_s * GROWTH)
        if passed is None and not_passed is not None:
            return max(_rounded(not_passed.rate_per_s / 2), self.least_per_s)
        return _rounded(math.sqrt(passed.rate_per_s * not_passed.rate_per_s))  # type: ignore[union-attr]

    def tell(self, probe: Probe) -> None:
        self.probes.append(probe)

    @property
    def passed(self) -> Probe | None:
        """The highest rate that passed below the lowest that did not: a pass above a failure is luck."""
        limit = min(
            (each.rate_per_s for each in self.probes if each.verdict is not Verdict.PASS), default=math.inf
        )
        below = [each for each in self.probes if each.verdict is Verdict.PASS and each.rate_per_s < limit]
        return max(below, key=lambda each: each.rate_per_s, default=None)

    @property
    def not_passed(self) -> Probe | None:
        """The lowest."""
        failed = [each for each in self.probes if each.verdict is not Verdict.PASS]
        return min(failed, key=lambda each: each.rate_per_s, default=None)

    @property
    def is_settled(self) -> bool:
        """The gap is small enough, or not even the least rate passed."""
        not_passed = self.not_passed
        if not_passed is None:
            return False
        if self.passed is None:
            return not_passed.rate_per_s <= self.least_per_s
        return not_passed.rate_per_s <= self.passed.rate_per_s * (1 + self.precision)


def _rounded(rate_per_s: float) -> float:
    """To three digits: what a report can say."""
    return float(f"{rate_per_s:.3g}")


@dataclass(frozen=True, slots=True)
class GivingUp:
    """A probe that can no longer pass is ended early: its requests would only queue up.

    The rate cannot be held when more wait than come in `backlog_s`; the rest of the run would not take that back.
    """

    rate_per_s: float
    backlog_s: float
    least_done: int = 20
    failed_share: float = 0.2

    def reason(self, num_in_flight: int, num_done: int, num_failed: int) -> str:
        """Empty: go on."""
        most = max(10.0, self.rate_per_s * self.backlog_s)
        if num_in_flight > most:
            return (
                f"{num_in_flight} requests in flight at {self.rate_per_s:g}/s, more than {self.backlog_s:g} s of "
                "arrivals"
            )
        if num_done >= self.least_done and num_failed > self.failed_share * num_done:
            return f"{num_failed} of {num_done} requests failed"
        return ""
