"""The scaler's decider over recorded load, beside its rivals: `scaler.simulation`, no server and no waiting.

Instances are sized so that the busiest minute needs exactly ten at 70 % utilisation; the static peak is those ten.
Names end in the trace and the start-up time, `cost_share_conv24_120s`:
- `cost_share`: instance-seconds, those that start or drain included / those of the static peak.
- `started_5s_share`, `started_30s_share`: requests that waited at most so long / all requests.
- `flips_per_day`: changes in the opposite direction of the one before, within 300 s of it. `flips`, for the hour of
  code23, is their number.
- `peak_over_needed`: the most instances at any time, starting ones included / the ten that are needed.
- `mean_instances`: of code23, whose bursts no reactive count can follow.
- `late_share_reserved`, `late_share_unreserved`: of the requests in a peak of three times the load for 30 minutes,
  those that waited more than 5 s / all; the policy has a reservation for the peak, or has none. An hour before it a
  wave of 1.5 times the load makes the scaler measure the start-up time.

conv24 and code24 are whole weeks of Azure (2024), replayed as a fluid; code23 is an hour of Azure (2023), replayed
request by request. One policy for all: the defaults with `max_instances` = 30. The traces are no part of tidegate:
without them everything but the peak is skipped.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.report import Figure, Report
from scaler.policy import ModelPolicy, Reservation
from scaler.simulation import traces
from scaler.simulation.figures import Figures
from scaler.simulation.ours import Ours
from scaler.simulation.replay import Run
from scaler.simulation.replay import run as replay_run
from scaler.simulation.rivals import Rival, all_rivals
from scaler.simulation.traces import Trace, TraceError

NAME = "scaler"
OURS = "tidegate"
RESERVED = f"{OURS}, reserved"
POLICY = ModelPolicy(max_instances=30)
STARTUP_S, BURST_STARTUP_S = 120.0, 30.0
OTHER_STARTUPS_S = (30.0, 60.0, 300.0)
WEEKS, BURSTS = ("conv24", "code24"), "code23"
PEAK = "peak"
PEAK_STARTUPS_S = (60.0, 300.0)
PEAK_FROM_S, PEAK_TO_S = 3 * 3600.0, 3.5 * 3600.0
LATE_S = 5.0

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Job:
    """One replay. `policy`: ours, ours with the peak reserved, or a rival by its name."""

    trace: str
    policy: str
    startup_s: float

    @property
    def suffix(self) -> str:
        return f"{self.trace}_{self.startup_s:g}s"


def run(quick: bool, progress: Progress) -> dict[str, Any]:
    wanted = list(jobs(quick))
    skipped = {name: reason for name in (*WEEKS, BURSTS) if (reason := missing(name))}
    todo = [job for job in wanted if job.trace not in skipped]
    figures: dict[str, Figure] = {}
    peers: dict[str, dict[str, Figure]] = {}
    # Processes that begin anew: this one may have threads. The long replays first, so that both cores end together.
    todo.sort(key=lambda job: (job.trace in WEEKS, job.policy == OURS), reverse=True)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=context) as pool:
        for job, found in zip(todo, pool.map(measured, todo), strict=True):
            progress(f"{job.trace}, {job.policy}, start-up {job.startup_s:g} s")
            mine = figures if job.policy in (OURS, RESERVED) else peers.setdefault(job.policy, {})
            mine.update(found)
    return Report(NAME, 1, figures, peers, skipped).to_dict()


def jobs(quick: bool) -> Iterator[Job]:
    rivals = [rival.name for rival in all_rivals()]
    for name in WEEKS:
        for startup_s in (STARTUP_S, *(() if quick else OTHER_STARTUPS_S)):
            yield Job(name, OURS, startup_s)
        for rival in rivals:
            yield Job(name, rival, STARTUP_S)
    for policy in (OURS, *rivals):
        yield Job(BURSTS, policy, BURST_STARTUP_S)
    for startup_s in PEAK_STARTUPS_S:
        for policy in (OURS, RESERVED, "thresholds", "hpa-like"):
            yield Job(PEAK, policy, startup_s)


def missing(name: str) -> str | None:
    """Why a trace can't be replayed."""
    try:
        traces.load(name)
    except TraceError as exc:
        return str(exc)
    return None


def measured(job: Job) -> dict[str, Figure]:
    """In a process of its own."""
    if job.trace == PEAK:
        name = f"late_share_{'reserved' if job.policy == RESERVED else 'unreserved'}_{job.startup_s:g}s"
        return {name: Figure(late_share(replay_run(peak(), policy_of(job), job.startup_s)), "share")}
    return named(job, replay_run(traces.load(job.trace), policy_of(job), job.startup_s).figures)


def policy_of(job: Job) -> Rival:
    if job.policy == OURS:
        return Ours(POLICY)
    if job.policy == RESERVED:
        launch = Reservation(
            name="launch", start="1970-01-01T03:00", end="1970-01-01T03:30", min_instances=10
        )
        return Ours(POLICY.model_copy(update={"reservations": (launch,)}))
    return next(rival for rival in all_rivals() if rival.name == job.policy)


def named(job: Job, figures: Figures) -> dict[str, Figure]:
    values = {
        "cost_share": (figures.cost_share, "share"),
        "started_5s_share": (figures.started_5s_share, "share"),
        "started_30s_share": (figures.started_30s_share, "share"),
        "peak_over_needed": (figures.peak_over_needed, "ratio"),
    }
    if job.trace == BURSTS:
        values["flips"] = (float(figures.flips), "flips")
        values["mean_instances"] = (figures.mean_instances, "instances")
    else:
        values["flips_per_day"] = (figures.flips_per_day, "flips/day")
    return {f"{name}_{job.suffix}": Figure(value, unit) for name, (value, unit) in values.items()}


def peak() -> Trace:
    """Flat load, an hour of 1.5 times it, flat, the peak of three times, flat."""
    times = np.repeat([1.0, 1.5, 1.0, 3.0, 1.0], [60, 60, 60, 30, 60])
    return traces.of_counts(PEAK, times * 20.0 * 60.0, 60.0)


def late_share(course: Run) -> float:
    waits = course.waits
    is_in = (waits.at_s >= PEAK_FROM_S) & (waits.at_s < PEAK_TO_S)
    late = waits.weights[is_in & (waits.waits_s > LATE_S)].sum()
    return float(late / waits.weights[is_in].sum())
