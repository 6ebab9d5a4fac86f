"""The scaler's decider over recorded load, beside its rivals: `scaler.simulation`, no server and no waiting.

Instances are sized so that the busiest minute needs exactly ten at 70 % utilisation; the static peak is those ten.
Names end in the trace and the start-up time, `cost_share_conv24_120s`:
- `cost_share`: instance-seconds, those that start or drain included / those of the static peak.
- `started_5s_share`, `started_30s_share`: requests that waited at most so long / all requests.
- `flips_per_day`: changes in the opposite direction of the one before, within 300 s of it. `flips`, for the hour of
  code23, is their number.
- `peak_over_needed`: the most instances at any time, starting ones included / the ten that are needed.
- `mean_instances`: of code23.
- `late_share_reserved`, `late_share_unreserved`: of the requests in a peak of three times the load for 30 minutes,
  those that waited more than 5 s / all; the policy has a reservation for the peak, or has none. An hour before it
  a wave of 1.5 times the load makes the scaler measure the start-up time.

conv24 and code24 are whole weeks of Azure (2024), replayed as a fluid; code23 is an hour of Azure (2023), replayed
request by request. One policy for the weeks and the peak (POLICY, the defaults), one for bursts (BURSTY), whose
figures under POLICY are those of the peer `tidegate-defaults`. What chance decides was drawn several times: how
the weeks' bins of 10 s become ticks of 5 s, and where in a tick the hour of code23 begins; values are medians,
`min` and `max` the extremes. The traces are no part of tidegate: without them all but the peak is skipped.
"""

from __future__ import annotations

import multiprocessing
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.report import Figure, Report
from scaler.deciding.policy import ModelPolicy, Reservation, ScaleIn
from scaler.simulation import traces
from scaler.simulation.figures import Figures
from scaler.simulation.ours import Ours
from scaler.simulation.queueing import Capacity
from scaler.simulation.replay import Run, replay
from scaler.simulation.replay import run as replay_run
from scaler.simulation.rival import Rival
from scaler.simulation.rivals import all_rivals
from scaler.simulation.trace import SEED, Trace, TraceError, of_counts

NAME = "scaler"
POLICY = ModelPolicy(max_instances=30)
BURSTY = ModelPolicy(min_instances=4, max_instances=20, scale_in=ScaleIn(window_s=900.0))
"""Bursts of seconds every few minutes: some instances always, and a memory that is longer than the pauses."""
OURS, DEFAULTS, RESERVED = "tidegate", "tidegate-defaults", "tidegate-reserved"
WEEKS, BURSTS, PEAK = ("conv24", "code24"), "code23", "peak"
STARTUP_S, BURST_STARTUP_S = 120.0, 30.0
OTHER_STARTUPS_S = (30.0, 60.0, 300.0)
WEEK_DRAWS, BURST_DRAWS = 3, 10
PEAK_STARTUPS_S = (60.0, 300.0)
PEAK_FROM_S, PEAK_TO_S = 3 * 3600.0, 3.5 * 3600.0
LATE_S = 5.0

Progress = Callable[[str], None]
Values = dict[str, tuple[float, str]]
"""Name -> value and unit."""


@dataclass(frozen=True)
class Job:
    """One replay of one policy: ours in its forms, or a rival by its name."""

    trace: str
    policy: str
    startup_s: float
    draw: int = 0

    @property
    def is_long(self) -> bool:
        return self.trace in WEEKS and self.policy == OURS


def run(quick: bool, progress: Progress) -> dict[str, Any]:
    skipped = {name: reason for name in (*WEEKS, BURSTS) if (reason := missing(name))}
    # The long ones first, so that all cores end together.
    todo = sorted((job for job in jobs(quick) if job.trace not in skipped), key=lambda job: not job.is_long)
    runs: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    units = {}
    # Processes that begin anew: this one may have threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=context) as pool:
        for done, (job, values) in enumerate(zip(todo, pool.map(measured, todo), strict=True), 1):
            progress(f"{done} of {len(todo)}: {job.trace}, {job.policy}, start-up {job.startup_s:g} s")
            for name, (value, unit) in values.items():
                runs[OURS if job.policy == RESERVED else job.policy][name].append(value)
                units[name] = unit
    peers = {
        policy: {name: Figure.of_runs(values, units[name]) for name, values in named.items()}
        for policy, named in runs.items()
    }
    return Report(NAME, 1 if quick else WEEK_DRAWS, peers.pop(OURS), peers, skipped).to_dict()


def jobs(quick: bool) -> Iterator[Job]:
    rivals = [rival.name for rival in all_rivals()]
    for trace in WEEKS:
        for draw in range(1 if quick else WEEK_DRAWS):
            yield Job(trace, OURS, STARTUP_S, draw)
        for startup_s in () if quick else OTHER_STARTUPS_S:
            yield Job(trace, OURS, startup_s)
        for rival in rivals:
            yield Job(trace, rival, STARTUP_S)
    for policy in (OURS, DEFAULTS, *rivals):
        for draw in range(BURST_DRAWS):
            yield Job(BURSTS, policy, BURST_STARTUP_S, draw)
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


def measured(job: Job) -> Values:
    """In a process of its own."""
    if job.trace == PEAK:
        kind = "reserved" if job.policy == RESERVED else "unreserved"
        share = late_share(replay_run(peak(), policy_of(job), job.startup_s))
        return {f"late_share_{kind}_{job.startup_s:g}s": (share, "share")}
    trace = traces.load(job.trace)
    capacity = Capacity.for_peak(trace)
    if job.trace == BURSTS:
        trace = trace.later(0.5 + job.draw)
    figures = replay(trace, policy_of(job), job.startup_s, capacity=capacity, seed=SEED + job.draw)
    return named(job, figures)


def policy_of(job: Job) -> Rival:
    if job.policy == OURS:
        return Ours(BURSTY if job.trace == BURSTS else POLICY)
    if job.policy == DEFAULTS:
        return Ours(POLICY)
    if job.policy == RESERVED:
        launch = Reservation(
            name="launch", start="1970-01-01T03:00", end="1970-01-01T03:30", min_instances=10
        )
        return Ours(POLICY.model_copy(update={"reservations": (launch,)}))
    return next(rival for rival in all_rivals() if rival.name == job.policy)


def named(job: Job, figures: Figures) -> Values:
    values: Values = {
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
    return {f"{name}_{job.trace}_{job.startup_s:g}s": value for name, value in values.items()}


def peak() -> Trace:
    """Flat load, an hour of 1.5 times it, flat, the peak of three times, flat."""
    times = np.repeat([1.0, 1.5, 1.0, 3.0, 1.0], [60, 60, 60, 30, 60])
    return of_counts(PEAK, times * 20.0 * 60.0, 60.0)


def late_share(course: Run) -> float:
    waits = course.waits
    is_in = (waits.at_s >= PEAK_FROM_S) & (waits.at_s < PEAK_TO_S)
    late = waits.weights[is_in & (waits.waits_s > LATE_S)].sum()
    return float(late / waits.weights[is_in].sum())
