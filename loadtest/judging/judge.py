"""Judges each SLO line on what was measured, and the run itself by checks that no plan can leave out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from loadtest.judging.checks import RunFacts, check_run
from loadtest.judging.expression import Expression
from loadtest.judging.proof import Counts, prove, share_interval
from loadtest.judging.units import in_words
from loadtest.measuring.catalogue import Kind
from loadtest.measuring.gaps import resampled_shares
from loadtest.measuring.memory import SETTLE_S
from loadtest.measuring.metrics import SERIES, Measured
from loadtest.measuring.quantiles import Quantile
from loadtest.measuring.sample_sizes import n_needed
from loadtest.measuring.slopes import NEGLIGIBLE
from loadtest.measuring.steady import MANY_TIMES
from loadtest.verdict import Judgement, Row, Verdict

GENERATORS_OWN = ("dispatch_delay", "not_sent")
NO_REQUESTS = "no data: no request of this metric and scope was due in the window"


def judge(expressions: Sequence[Expression], measured: Measured, facts: RunFacts) -> Judgement:
    """The built-in checks first, then the lines in their order."""
    checks = check_run(measured, facts, has_lines=bool(expressions))
    return Judgement((*checks, *(judge_line(each, measured) for each in expressions)))


def judge_line(line: Expression, measured: Measured) -> Row:
    """A generator that broke its line accuses nobody: INVALID, where the server's would be FAIL."""
    row = _judged(line, measured)
    if line.metric.name in GENERATORS_OWN and row.verdict is Verdict.FAIL:
        return replace(
            row, verdict=Verdict.INVALID, why=f"{row.why}; this is the generator's, not the server's"
        )
    return row


def _judged(line: Expression, measured: Measured) -> Row:
    match line.metric.kind:
        case Kind.REQUEST if line.p is not None:
            return _percentile(line, line.p, measured)
        case Kind.GAP if line.p is not None:
            return _gap_percentile(line, line.p, measured)
        case Kind.REQUEST | Kind.GAP:
            return _largest(line, measured)
        case Kind.SHARE if line.unit == "ratio":
            return _share(line, measured)
        case Kind.SLOPE:
            return _slope(line, measured)
        case Kind.CHANGE:
            return _change(line, measured)
        case _:
            return _value(line, measured)


def _percentile(line: Expression, p: float, measured: Measured) -> Row:
    samples = measured.samples(line.metric.name, line.scope)
    found = measured.quantile(line.metric.name, p, line.scope, line.confidence)
    sure, may = samples.beyond(line.limit, limit_itself=line.operator == "<")
    span_s = measured.window.span_s
    verdict, why = prove(Counts(found.n, found.n_effective, sure, may, p, line.confidence, span_s))
    return _quantile_row(line, found, verdict, why)


def _gap_percentile(line: Expression, p: float, measured: Measured) -> Row:
    """By resampling whole requests: the share of gaps beyond must lie below 1 - p at the line's confidence."""
    gaps = measured.gaps(line.scope)
    found = measured.quantile("gap", p, line.scope, line.confidence)
    if gaps.n_requests == 0:
        return _no_data(line, NO_REQUESTS, found.n_needed)
    strict = line.operator == "<"
    sure = gaps.beyond(line.limit, limit_itself=strict, with_unknown=False)
    may = gaps.beyond(line.limit, limit_itself=strict, with_unknown=True)
    total, allowed = int(gaps.counts.sum()), 1 - p
    at_most = float(np.quantile(resampled_shares(may, gaps.counts), line.confidence))
    said = (
        f"{int(sure.sum()):,} of {total:,} gaps of {gaps.n_requests:,} requests beyond the limit "
        f"({100 * sure.sum() / total:.3g} %), {100 * allowed:.3g} % may be"
    )
    if found.n < found.n_needed:
        verdict, said = (
            Verdict.INVALID,
            f"n too small: {found.n:,} requests, {found.n_needed:,} are needed",
        )
    elif sure.sum() / total > allowed:
        verdict = Verdict.FAIL
    elif max(at_most, may.sum() / total) <= allowed:
        verdict = Verdict.PASS
    else:
        verdict = Verdict.INVALID
        said += f"; in resampled runs it is up to {100 * at_most:.3g} %, so the run is too short to prove it"
    return _quantile_row(line, found, verdict, said)


def _largest(line: Expression, measured: Measured) -> Row:
    """`max` speaks of this run only: one request beyond is one too many."""
    is_gap = line.metric.kind is Kind.GAP
    samples = measured.samples("gap.worst" if is_gap else line.metric.name, line.scope)
    if not len(samples):
        return _no_data(line, NO_REQUESTS)
    sure, may = samples.beyond(line.limit, limit_itself=line.operator == "<")
    top = float(samples.values.max())
    why = f"{sure:,} of {len(samples):,} requests beyond the limit in this run"
    verdict = Verdict.FAIL if sure else Verdict.INVALID if may else Verdict.PASS
    if not sure and may:
        why += f"; {may:,} were unfinished when it ended, a longer drain_s would tell"
    return _row(line, top if math.isfinite(top) else None, verdict, why, len(samples))


def _share(line: Expression, measured: Measured) -> Row:
    """As a percentile is: the requests on the bad side are counted. A limit of none or all speaks of this run."""
    name = line.metric.name
    share = measured.share(name, line.scope)
    if share.value is None:
        return _no_data(line, NO_REQUESTS)
    is_errors = name == "errors"
    bad = share.count if is_errors else share.n - share.count
    unfinished = int(measured.count("censored", line.scope) or 0) if is_errors else 0
    allowed = line.limit if is_errors else 1 - line.limit
    low, high = share_interval(share.count, share.n, share.n_effective, line.confidence)
    needed = None
    if not 0 < allowed < 1:
        verdict = Verdict.PASS if line.holds(share.value) else Verdict.FAIL
        if verdict is Verdict.PASS and unfinished:
            verdict = Verdict.INVALID
        why = f"{share.count:,} of {share.n:,} in this run, {unfinished:,} unfinished"
    else:
        needed = n_needed(1 - allowed, line.confidence)
        span_s = measured.window.span_s
        verdict, why = prove(
            Counts(share.n, share.n_effective, bad, bad + unfinished, 1 - allowed, line.confidence, span_s),
            "failed" if is_errors else "missed a goal",
        )
        if verdict is not Verdict.FAIL and not line.holds(share.value):
            verdict = Verdict.FAIL
    return _row(line, share.value, verdict, why, share.n, low, high, needed)


def _slope(line: Expression, measured: Measured) -> Row:
    """Fails when the interval lies above the limit by more than noise; too wide an interval proves nothing."""
    slope = measured.slope(line.metric.name, line.scope)
    if hole := measured.hole_of(line.metric.name, line.scope):
        return _no_data(line, hole)
    if slope is None:
        return _no_data(line, "no data: fewer than four bins of the window have samples")
    said = (
        f"{in_words(slope.per_s, line.unit)}, 99 % interval {in_words(slope.low, line.unit)} to "
        f"{in_words(slope.high, line.unit)}, over {slope.span_s:.0f} s"
    )
    beyond = (slope.per_s - line.limit) * slope.span_s
    if slope.low > line.limit and beyond > NEGLIGIBLE * slope.floor:
        verdict = Verdict.FAIL
    elif not slope.is_told:
        verdict = Verdict.INVALID
        much_longer = slope.span_needed_s > MANY_TIMES * slope.span_s
        needed = "many times as long" if much_longer else f"of about {slope.span_needed_s:.0f} s"
        said += f"; too wide to tell, a run {needed} might"
    else:
        verdict = Verdict.PASS
    return _row(line, slope.per_s, verdict, said, slope.points, slope.low, slope.high)


def _change(line: Expression, measured: Measured) -> Row:
    name = line.metric.name
    if unfinished := measured.unfinished:
        return _no_data(
            line, f"{unfinished:,} requests were still unfinished at the end; a longer drain_s would tell"
        )
    change = measured.change(name, line.scope)
    if change is None:
        return _no_data(
            line,
            f"no data: `{SERIES[name]}` needs a sample before the first request and {SETTLE_S:g} s after the last",
        )
    per = f", {change.per_request:.3g} a request" if change.per_request is not None else ""
    why = f"{change.before:,.0f} before, {change.after:,.0f} after {change.requests:,} requests{per}"
    verdict = Verdict.PASS if line.holds(change.left) else Verdict.FAIL
    return _row(line, change.left, verdict, why, change.samples_after)


def _value(line: Expression, measured: Measured) -> Row:
    """Counts, rates and levels: one figure of this run against the limit."""
    metric, scope = line.metric, line.scope
    if metric.of_curve and (hole := measured.hole_of(metric.name, scope)):
        return _no_data(line, hole)
    match metric.kind:
        case Kind.COUNT:
            value = measured.count(metric.name, scope)
        case Kind.SHARE if line.statistic == "count":
            value = measured.count(metric.name, scope)
        case Kind.RATE | Kind.SHARE:
            value = measured.rate(metric.name, scope)
        case _:
            value = measured.level(metric.name, line.statistic, scope)
    if value is None:
        return _no_data(line, "no data: nothing was sampled or sent in this scope")
    n = measured.samples_of(metric.name, scope) if metric.of_curve else int(measured.rows(scope).sum())
    verdict = Verdict.PASS if line.holds(value) else Verdict.FAIL
    why = f"{in_words(value, line.unit)} in this run"
    return _row(line, value, verdict, why, n)


def _quantile_row(line: Expression, found: Quantile, verdict: Verdict, why: str) -> Row:
    if found.is_infinite:
        why += "; infinite, because failed requests count as never answered"
    elif found.is_lower_bound and found.value is not None:
        why += f"; {in_words(found.value, line.unit)} or more, as unfinished requests would have decided it"
    return _row(line, found.value, verdict, why, found.n, found.low, found.high, found.n_needed)


def _no_data(line: Expression, why: str, needed: int | None = None) -> Row:
    return _row(line, None, Verdict.INVALID, why, 0, needed=needed)


def _row(
    line: Expression,
    value: float | None,
    verdict: Verdict,
    why: str,
    n: int,
    low: float | None = None,
    high: float | None = None,
    needed: int | None = None,
) -> Row:
    return Row(
        expression=line.text,
        value=value,
        limit=line.limit,
        unit=line.unit,
        low=low,
        high=high,
        n=n,
        n_needed=needed,
        verdict=verdict,
        why=why,
    )
