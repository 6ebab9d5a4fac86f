"""One policy over one trace, tick by tick, on a clock that is a number.

Each tick the instances serve; at its end the policy sees what a collector would have measured over the last 15 s.
What it wants is begun at once, as with pods: what it adds serves one start-up time later and does not wait for what
starts already, what it removes finishes what it has. Instances cost from the moment they are asked for until they
have drained.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import TypedDict, Unpack

import numpy as np

from scaler.simulation.arrival_queue import ArrivalQueue
from scaler.simulation.figures import DAY_S, WEEK_S, Figures, count_flips, started_within, wait_percentiles
from scaler.simulation.fleet import Change, Fleet
from scaler.simulation.fluid_queue import FluidQueue
from scaler.simulation.queueing import PEAK_INSTANCES, Capacity, Queue, Served, Waits
from scaler.simulation.rival import Rival, Seen, Setting
from scaler.simulation.trace import SEED, Floats, Trace

TICK_S = 5.0
WINDOW_S = 15.0


@dataclass(frozen=True)
class Run:
    """The whole course. Arrays hold one value a tick, at its end."""

    trace: Trace
    policy: str
    tick_s: float
    arrived: Floats
    ready: Floats
    wanted: Floats
    """Ready and starting."""
    paid: Floats
    queue: Floats
    busy_s: Floats
    changes: tuple[Change, ...]
    waits: Waits
    figures: Figures


class Options(TypedDict, total=False):
    """Of `run`, each with its default there."""

    tick_s: float
    peak_instances: float
    capacity: Capacity
    startup_sigma: float
    seed: int


def replay(trace: Trace, rival: Rival, startup_s: float, **options: Unpack[Options]) -> Figures:
    """What `rival` makes of `trace` when a new instance takes `startup_s` to serve."""
    return run(trace, rival, startup_s, **options).figures


def run(
    trace: Trace,
    rival: Rival,
    startup_s: float,
    *,
    tick_s: float = TICK_S,
    peak_instances: float = PEAK_INSTANCES,
    capacity: Capacity | None = None,
    startup_sigma: float = 0.0,
    seed: int = SEED,
) -> Run:
    """As `replay`, with the course.

    `capacity`: what an instance does, instead of sizing it by the trace's peak. `startup_sigma`: start-up times are
    log-normal with that sigma, their median `startup_s`. `seed`: of these, and of how bins become ticks.
    """
    capacity = capacity or Capacity.for_peak(trace, peak_instances)
    queue = _queue_for(trace, tick_s, capacity, seed)
    median_s = startup_s if rival.startup_s is None else rival.startup_s
    chance = np.random.default_rng(seed)
    fleet = Fleet(queue, lambda: median_s * math.exp(startup_sigma * chance.standard_normal()))
    fleet.begin(rival.begin(Setting(trace, capacity, capacity.needed(trace.rate_at(0.0)))))

    num_ticks = trace.num_ticks(tick_s)
    window = _Window(max(1, round(WINDOW_S / tick_s)), tick_s)
    every = max(1, round(rival.period_s / tick_s))
    rows = np.empty((num_ticks, 6))
    for tick in range(num_ticks):
        now = tick * tick_s
        for start in fleet.settle(now):
            rival.started(start.takes_s)
        served = queue.advance()
        rows[tick] = (served.arrived, fleet.ready, fleet.total, fleet.paid, served.queue, served.busy_s)
        window.add(served, fleet.ready)
        if (tick + 1) % every == 0:
            now += tick_s
            wish = rival.wanted(window.seen(now, fleet))
            fleet.wish(wish.num_instances, now, wish.reason)
    arrived, ready, wanted, paid, queued, busy_s = rows.T
    waits = queue.waits()
    figures = _figures(trace, rival, startup_s, tick_s, capacity, fleet, (ready, wanted, paid, busy_s), waits)
    return Run(
        trace,
        rival.name,
        tick_s,
        arrived,
        ready,
        wanted,
        paid,
        queued,
        busy_s,
        tuple(fleet.changes),
        waits,
        figures,
    )


def _queue_for(trace: Trace, tick_s: float, capacity: Capacity, seed: int) -> Queue:
    if trace.arrivals_s is None:
        return FluidQueue(trace.per_tick(tick_s, seed), tick_s, capacity)
    return ArrivalQueue(trace.arrivals_s, tick_s, capacity)


class _Window:
    """The last ticks, summed."""

    def __init__(self, num_ticks: int, tick_s: float) -> None:
        self._ticks: deque[tuple[Served, float]] = deque(maxlen=num_ticks)
        self._tick_s = tick_s

    def add(self, served: Served, ready: int) -> None:
        self._ticks.append((served, ready * self._tick_s))

    def seen(self, now: float, fleet: Fleet) -> Seen:
        arrived = started = queued_s = busy_s = could_s = 0.0
        for served, offered_s in self._ticks:
            arrived += served.arrived
            started += served.started
            queued_s += served.queued_s
            busy_s += served.busy_s
            could_s += offered_s
        length_s = len(self._ticks) * self._tick_s
        return Seen(
            now,
            fleet.ready,
            len(fleet.starting),
            busy_s / could_s if could_s else 0.0,
            self._ticks[-1][0].queue,
            queued_s / started if started else math.nan,
            (queued_s + busy_s) / length_s,
            arrived / length_s,
            busy_s / started if started else math.nan,
        )


def _figures(
    trace: Trace,
    rival: Rival,
    startup_s: float,
    tick_s: float,
    capacity: Capacity,
    fleet: Fleet,
    columns: tuple[Floats, Floats, Floats, Floats],
    waits: Waits,
) -> Figures:
    ready, wanted, paid, busy_s = columns
    needed = capacity.needed(trace.peak_per_s())
    known = trace.known_ticks(tick_s)
    if not known.all():
        bins = np.minimum((waits.at_s / trace.bin_s).astype(int), len(trace.known) - 1)
        is_known = trace.known[bins]
        waits = Waits(waits.at_s[is_known], waits.waits_s[is_known], waits.weights[is_known])
    p50, p99, p999, longest = wait_percentiles(waits, (0.5, 0.99, 0.999, 1.0))
    flips = count_flips(fleet.changes)
    mean = float(paid[known].mean())
    serving_s = float(ready[known].sum()) * tick_s
    return Figures(
        policy=rival.name,
        trace=trace.name,
        startup_s=startup_s,
        cost_share=mean / needed,
        mean_instances=mean,
        started_5s_share=started_within(waits, 5.0),
        started_30s_share=started_within(waits, 30.0),
        wait_p50_s=p50,
        wait_p99_s=p99,
        wait_p999_s=p999,
        wait_max_s=longest,
        flips=flips,
        flips_per_day=flips / (trace.length_s / DAY_S),
        num_changes=len(fleet.changes),
        changes_per_week=len(fleet.changes) / (trace.length_s / WEEK_S),
        peak_instances=int(wanted.max()),
        peak_over_needed=float(wanted.max()) / needed,
        utilization_mean=float(busy_s[known].sum()) / serving_s if serving_s else 0.0,
    )
