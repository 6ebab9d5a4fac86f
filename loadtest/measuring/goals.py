"""Goodput: which requests met every latency goal at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadtest.measuring.gaps import gaps_of
from loadtest.measuring.samples import Bool, Scope, in_scope, request_values
from loadtest.records import Requests, Status


@dataclass(frozen=True, slots=True)
class Goal:
    """One latency line of the plan, as it reads for a single request."""

    metric: str
    scope: Scope
    p: float
    """In (0, 1); 1 for `max`. Of a request's own gaps so many must keep the limit; else it does not matter."""
    limit_s: float
    limit_itself_is_good: bool


def is_good(requests: Requests, goals: Sequence[Goal], is_streaming: Bool) -> Bool:
    """Shape [n]: ended well and keeps every goal that covers it and arises for it."""
    good: Bool = requests.status == Status.OK
    for goal in goals:
        covered = in_scope(requests, goal.scope)
        if goal.metric == "gap":
            good &= ~_breaks_gap_goal(requests, covered & is_streaming, goal)
        else:
            values, _ = request_values(requests, goal.metric, is_streaming)
            with np.errstate(invalid="ignore"):
                breaks = values > goal.limit_s if goal.limit_itself_is_good else values >= goal.limit_s
            good &= ~(covered & breaks)
    return good


def _breaks_gap_goal(requests: Requests, covered: Bool, goal: Goal) -> Bool:
    gaps = gaps_of(requests, covered & (requests.status == Status.OK))
    breaks = np.zeros(len(requests), dtype=bool)
    if gaps.n_requests:
        beyond = gaps.beyond(goal.limit_s, limit_itself=not goal.limit_itself_is_good, with_unknown=False)
        breaks[gaps.rows] = beyond > (1 - goal.p) * gaps.counts
    return breaks
