"""Before a run: how many requests each SLO line needs, and how long the plan must run to have them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadtest.judging.expression import Expression
from loadtest.judging.proof import Counts, samples_needed
from loadtest.measuring.catalogue import Kind
from loadtest.measuring.samples import Scope
from loadtest.measuring.slopes import FEWEST_POINTS
from loadtest.measuring.steady import BIN_S, FEWEST_BINS
from loadtest.planning.load import ClosedLoop
from loadtest.planning.plan import Plan
from loadtest.planning.schedule import plan_schedule
from loadtest.planning.users import ChatUser

HALF_USED = 0.5
"""A server that keeps a limit rarely does so without one request beyond it."""


@dataclass(frozen=True, slots=True)
class Need:
    """Of one line. What the question does not arise for is None."""

    expression: str
    n_expected: int | None
    """Requests of its scope in the measured window; None of a closed loop, whose rate is the server's."""
    n_needed: int
    """With none beyond the limit."""
    n_likely: int
    """With half of those beyond that may be, and none of them in bursts."""
    run_needed_s: float | None
    """How long the run must be for `n_needed`, warm-up included, at the plan's mean rate."""
    run_likely_s: float | None

    @property
    def is_enough(self) -> bool | None:
        return None if self.n_expected is None else self.n_expected >= self.n_needed


def needs_of(plan: Plan, expressions: Sequence[Expression]) -> tuple[Need, ...]:
    """Of lines with a percentile or a share; others speak of one run, however long. A warm-up that is found in the
    data is not known yet: only `warm_up.least_s` is taken off. Raises PlanError when the plan has no schedule."""
    counts = None if isinstance(plan.load, ClosedLoop) else _requests_by_user(plan)
    window_s = max(0.0, plan.duration_s - plan.warm_up.least_s)
    needs = []
    for line in expressions:
        p = _percentile_of(line)
        if p is None:
            continue
        needed = samples_needed(Counts(0, 0.0, 0, 0, p, line.confidence, 0.0)) or 0
        likely = samples_needed(_half_used(p, line.confidence)) or 0
        expected = (
            None if counts is None else _in_scope(plan, counts, line.scope) * window_s / plan.duration_s
        )
        rate = expected / window_s if expected and window_s else None
        needs.append(
            Need(
                expression=line.text,
                n_expected=None if expected is None else round(expected),
                n_needed=needed,
                n_likely=likely,
                run_needed_s=plan.warm_up.least_s + needed / rate if rate else None,
                run_likely_s=plan.warm_up.least_s + likely / rate if rate else None,
            )
        )
    return tuple(needs)


def steady_needs_s(plan: Plan) -> float | None:
    """The shortest run in which a trend can be tested, when the plan asks for steady state; noise may need more."""
    if not plan.needs_steady:
        return None
    bin_s = min(BIN_S, max(1.0, plan.duration_s / FEWEST_BINS))
    return plan.warm_up.least_s + FEWEST_POINTS * bin_s


def _percentile_of(line: Expression) -> float | None:
    if line.metric.kind in (Kind.REQUEST, Kind.GAP):
        return line.p
    if not line.is_share:
        return None
    share = 1 - line.limit if line.metric.name == "errors" else line.limit
    return share if 0 < share < 1 else None


def _half_used(p: float, confidence: float) -> Counts:
    n = 1_000_000
    beyond = round(n * (1 - p) * HALF_USED)
    return Counts(n, float(n), beyond, beyond, p, confidence, 0.0)


def _requests_by_user(plan: Plan) -> list[float]:
    """All turns of a conversation are requests; the schedule has it once."""
    counts = np.bincount(plan_schedule(plan).user, minlength=len(plan.users))
    return [float(count) * _mean_turns(plan, user) for user, count in enumerate(counts)]


def _mean_turns(plan: Plan, user: int) -> float:
    one = plan.users[user]
    return (one.turns.min + one.turns.max) / 2 if isinstance(one, ChatUser) else 1.0


def _in_scope(plan: Plan, counts: Sequence[float], scope: Scope) -> float:
    wanted = dict(scope)
    return sum(
        count
        for user, count in zip(plan.users, counts, strict=True)
        if wanted.get("user", user.name) == user.name and wanted.get("service", user.service) == user.service
    )
