"""What a plan would send, and whether it lasts long enough for the percentiles of its SLO. Nothing is sent."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from loadtest.judging.expression import Expression, parse_all
from loadtest.judging.proof import samples_likely
from loadtest.measuring.catalogue import Good, Kind
from loadtest.measuring.sample_sizes import n_needed
from loadtest.planning.plan import Plan
from loadtest.planning.schedule import Schedule, plan_schedule
from loadtest.planning.users import ChatUser, User

STREAMING = ("openai_chat", "grpc_generate")
STREAMS_ONLY = ("ttft.scheduled", "ttft.service", "tpot", "gap", "gap.worst")


@dataclass(frozen=True, slots=True)
class Demand:
    """One line about percentiles or shares: so many samples it needs even if none is over its limit."""

    expression: str
    expected: int | None
    """After the least warm-up. None: a closed loop, where that depends on the answers."""
    needed: int
    likely: int | None
    """With half of those over the limit that may be, and no bursts of them."""
    needed_duration_s: float | None
    """Of the load, at the plan's rate."""

    @property
    def is_met(self) -> bool:
        return self.expected is None or self.expected >= self.needed


@dataclass(frozen=True, slots=True)
class Forecast:
    duration_s: float
    num_requests: int | None
    """Later turns on average included. None: a closed loop."""
    by_user: dict[str, int]
    peak_per_s: float | None
    """Of 10 s; None: a closed loop."""
    demands: tuple[Demand, ...]

    @property
    def is_long_enough(self) -> bool:
        return all(demand.is_met for demand in self.demands)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"is_long_enough": self.is_long_enough}

    def lines(self) -> list[str]:
        """For people."""
        if self.num_requests is None:
            head = f"{self.duration_s:g} s of closed load; how many requests that is depends on the answers"
        else:
            mix = ", ".join(f"{count} {user}" for user, count in self.by_user.items())
            head = (
                f"{self.num_requests} requests in {self.duration_s:g} s ({mix}), at most {self.peak_per_s:.1f}/s "
                f"over 10 s"
            )
        return [head, *(_in_words(demand) for demand in self.demands)]


def forecast(plan: Plan) -> Forecast:
    """Raises PlanError, ExpressionError."""
    schedule = plan_schedule(plan)
    counts = None if schedule.closed is not None else _counts(plan, schedule, plan.warm_up.least_s)
    whole = None if counts is None else _counts(plan, schedule, 0.0)
    demands = [
        _demand(line, plan, counts, schedule.duration_s - plan.warm_up.least_s)
        for line in parse_all(plan.slo, names_of(plan))
        if quantile_of(line) is not None
    ]
    return Forecast(
        duration_s=schedule.duration_s,
        num_requests=None if whole is None else sum(whole.values()),
        by_user=whole or {},
        peak_per_s=None if counts is None else _peak(schedule),
        demands=tuple(demands),
    )


def quantile_of(line: Expression) -> float | None:
    """The share of requests that must be on the good side, in (0, 1); None of a line that counts no requests."""
    if line.is_share:
        share = 1 - line.limit if line.metric.good is Good.LOW else line.limit
        return share if 0 < share < 1 else None
    return line.p if line.metric.kind in (Kind.REQUEST, Kind.GAP) else None


def names_of(plan: Plan) -> dict[str, list[str]]:
    """What a scope of this plan's SLO may name."""
    return {
        "user": [user.name for user in plan.users],
        "service": list(dict.fromkeys(user.service for user in plan.users)),
    }


def _counts(plan: Plan, schedule: Schedule, from_s: float) -> dict[str, int]:
    started = schedule.user[schedule.t_intended_s >= from_s]
    per_user = np.bincount(started, minlength=len(plan.users))
    return {
        user.name: round(int(count) * _mean_turns(user))
        for user, count in zip(plan.users, per_user, strict=True)
    }


def _mean_turns(user: User) -> float:
    return (user.turns.min + user.turns.max) / 2 if isinstance(user, ChatUser) else 1.0


def _peak(schedule: Schedule, span_s: float = 10.0) -> float:
    t_s = schedule.t_intended_s
    if not len(t_s):
        return 0.0
    within = np.searchsorted(t_s, t_s + span_s) - np.arange(len(t_s))
    return float(within.max()) / min(span_s, max(schedule.duration_s, 1e-9))


def _demand(line: Expression, plan: Plan, counts: dict[str, int] | None, span_s: float) -> Demand:
    p = quantile_of(line) or 0.0
    needed, likely = n_needed(p, line.confidence), samples_likely(p, line.confidence)
    if counts is None:
        return Demand(line.text, None, needed, likely, None)
    scope = dict(line.scope)
    expected = sum(
        counts[user.name]
        for user in plan.users
        if scope.get("user", user.name) == user.name
        and scope.get("service", user.service) == user.service
        and (line.metric.name not in STREAMS_ONLY or user.kind in STREAMING)
    )
    seconds = plan.warm_up.least_s + span_s * needed / expected if expected else None
    return Demand(line.text, expected, needed, likely, seconds)


def _in_words(demand: Demand) -> str:
    if demand.expected is None:
        return f"{demand.expression}: needs {demand.needed} requests"
    text = f"{demand.expression}: about {demand.expected} requests, needs at least {demand.needed}"
    if demand.is_met and demand.likely and demand.expected < demand.likely:
        return f"{text}: enough if none of them is bad; {demand.likely} if half of those are that may be"
    if demand.is_met:
        return f"{text}: enough"
    if demand.needed_duration_s is None:
        return f"{text}: no user of the plan gives any"
    return f"{text}: too short; {demand.needed_duration_s:.0f} s at this rate would do"
