"""What every run is checked for, whatever its plan says: a figure is worth as much as the run that made it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadtest.measuring.memory import SETTLE_S
from loadtest.measuring.metrics import Measured
from loadtest.measuring.order_statistics import OrderStatistics
from loadtest.records import Float, Requests, Status
from loadtest.verdict import Row, Verdict

DISPATCH_PERCENTILE = 0.99
SAME_MOMENT_S = 1e-6


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What the judge must know of a run beside its rows and its curve."""

    drawn_s: Float | None
    """The schedule's intended starts, seconds after t0; None of a closed loop, which has none."""
    dispatch_p99_limit_s: float = 0.005
    problems: tuple[str, ...] = ()
    """What the generator says went wrong: a process that died, a saturated core, a run that was stopped."""


def check_run(measured: Measured, facts: RunFacts, *, has_lines: bool) -> tuple[Row, ...]:
    rows = [
        _lines_given(has_lines),
        _requests_measured(measured),
        _rows_are_sane(measured.requests),
        _generator(facts),
        _arrivals(measured, facts),
        _dispatch(measured, facts),
        _every_route_answered(measured),
        _steady(measured),
        _kv_returned(measured),
    ]
    return tuple(row for row in rows if row is not None)


def _lines_given(has_lines: bool) -> Row | None:
    if has_lines:
        return None
    return _check("slo", None, Verdict.INVALID, 0, "the plan has no slo line, so there is nothing to judge")


def _requests_measured(measured: Measured) -> Row:
    n, window = int(measured.rows().sum()), measured.window
    where = f"due from {window.start_s:.1f} to {window.end_s:.1f} s, of {len(measured.requests):,} in the run"
    return _check(
        "requests measured", n, Verdict.PASS if n else Verdict.INVALID, n, f"{n:,} {where}", limit=1
    )


def _rows_are_sane(requests: Requests) -> Row:
    """Clocks that run backwards, or times that are missing, make any percentile a guess."""
    was_sent = requests.status != Status.NOT_SENT
    ok = requests.status == Status.OK
    faults = {
        "without an intended start": ~np.isfinite(requests.t_intended_s),
        "sent at no known time": was_sent & ~np.isfinite(requests.t_sent_s),
        "ended at no known time": was_sent & ~np.isfinite(requests.t_last_s),
        "sent before they were due": requests.t_sent_s < requests.t_intended_s - SAME_MOMENT_S,
        "ended before they were sent": requests.t_last_s < requests.t_sent_s,
        "with a first token before they were sent": requests.t_first_s < requests.t_sent_s,
        "with a first token after their end": ok & (requests.t_first_s > requests.t_last_s + SAME_MOMENT_S),
        "with chunks in the wrong order": _has_backward_chunks(requests),
    }
    found = {what: int(where.sum()) for what, where in faults.items() if where.any()}
    why = (
        "; ".join(f"{count:,} {what}" for what, count in found.items()) or "all times are there and in order"
    )
    count = sum(found.values())
    return _check(
        "rows in order", count, Verdict.INVALID if found else Verdict.PASS, len(requests), why, limit=0
    )


def _has_backward_chunks(requests: Requests) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    offsets = requests.chunk_offsets
    backward = np.flatnonzero(np.diff(requests.chunk_times_s) < 0) + 1
    owner = np.searchsorted(offsets, backward, side="right") - 1
    # Between the last chunk of one request and the first of the next, time may go back.
    owner = owner[offsets[owner] != backward]
    found = np.zeros(len(requests), dtype=bool)
    found[owner] = True
    return found


def _generator(facts: RunFacts) -> Row:
    verdict = Verdict.INVALID if facts.problems else Verdict.PASS
    why = "; ".join(facts.problems) or "no process died or was saturated"
    return _check("generator", len(facts.problems), verdict, 1, why, limit=0)


def _arrivals(measured: Measured, facts: RunFacts) -> Row:
    """The rows are the drawn schedule, each once, and all were sent. Later turns are not in it."""
    requests = measured.requests
    not_sent = int((requests.status == Status.NOT_SENT).sum())
    name, n = "arrivals as drawn", len(requests)
    if facts.drawn_s is None:
        why = f"a closed loop has no schedule; {not_sent:,} not sent"
        return _check(name, not_sent, Verdict.INVALID if not_sent else Verdict.PASS, n, why, limit=0)
    offered = np.sort(requests.t_intended_s[requests.turn == 0])
    drawn = np.sort(facts.drawn_s)
    missing = len(drawn) - len(offered)
    why = f"{len(drawn):,} drawn, {len(offered):,} in the rows, {not_sent:,} not sent"
    is_same = missing == 0 and bool(np.all(np.abs(offered - drawn) <= SAME_MOMENT_S))
    if missing == 0 and not is_same:
        why += f"; {int((np.abs(offered - drawn) > SAME_MOMENT_S).sum()):,} at another moment"
    verdict = Verdict.PASS if is_same and not not_sent else Verdict.INVALID
    return _check(name, abs(missing) + not_sent, verdict, n, why, limit=0)


def _dispatch(measured: Measured, facts: RunFacts) -> Row:
    """A fact of this run, not an inference: all delays are known."""
    samples = measured.samples("dispatch_delay")
    limit = facts.dispatch_p99_limit_s
    name = "dispatch on time"
    if not len(samples):
        return _check(name, None, Verdict.INVALID, 0, "no data: nothing was sent in the window", limit, "s")
    ranked = OrderStatistics(samples.values)
    p99, worst = ranked.at_share(DISPATCH_PERCENTILE), ranked.at(len(ranked))
    why = f"p99 {1000 * p99:.2f} ms and at most {1000 * worst:.1f} ms late, p99 may be {1000 * limit:g} ms"
    if p99 > limit:
        why += (
            "; the generator was late, so its figures are not the server's: more processes, or a lower rate"
        )
    verdict = Verdict.PASS if p99 <= limit else Verdict.INVALID
    return _check(name, p99, verdict, len(samples), why, limit, "s")


def _every_route_answered(measured: Measured) -> Row:
    """Where nothing was ever answered well, the rest of the figures describe an error path."""
    rows = measured.requests
    ok = rows.status == Status.OK
    silent = [user for user in measured.users if not (ok & (rows.user == user)).any()]
    if len(rows) and not (ok & measured.in_window).any() and not silent:
        silent = ["any, in the window"]
    why = f"not one good answer for: {', '.join(silent)}" if silent else "every route was answered"
    verdict = Verdict.INVALID if silent or not len(rows) else Verdict.PASS
    return _check("every route answered", len(silent), verdict, len(rows), why, limit=0)


def _steady(measured: Measured) -> Row:
    window = measured.window
    verdict = Verdict.INVALID if window.is_steady is False else Verdict.PASS
    points = max((trend.slope.points for trend in window.evidence if trend.slope), default=0)
    return _check("steady state", None, verdict, points, window.why)


def _kv_returned(measured: Measured) -> Row | None:
    """A block that is in use when nothing runs any more is lost to every later request."""
    if not measured.curve.named("kv.used_blocks"):
        return None
    name, change = "kv back to baseline", measured.change("kv.leak")
    if still := measured.unfinished:
        return _check(name, None, Verdict.INVALID, 0, f"{still:,} requests were still unfinished at the end")
    if change is None:
        why = f"no data: needs a sample before the first request and {SETTLE_S:g} s after the end of the last"
        return _check(name, None, Verdict.INVALID, 0, why)
    per = f" ({change.per_request:.3g} a request)" if change.per_request is not None else ""
    why = (
        f"{change.before:,.0f} blocks in use before, {change.after:,.0f} after {change.requests:,} requests"
        f"{per if change.left > 0 else ''}"
    )
    verdict = Verdict.FAIL if change.left > 0 else Verdict.PASS
    return _check(name, change.left, verdict, change.samples_after, why, limit=0)


def _check(
    name: str,
    value: float | None,
    verdict: Verdict,
    n: int,
    why: str,
    limit: float | None = None,
    unit: str = "",
) -> Row:
    return Row(name, value, limit, unit, None, None, n, None, verdict, why)
