"""Open-loop load in a wave, and the highest rate that a server bears with its 99th percentile under a bound.

Open loop: callers do not wait for one another's answers, arrivals are Poisson. The wave: a third of the time at one
rate, a third at three times it, a third at the first again; a rate here is that of the crest.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

CREST_OVER_TROUGH = 3.0
MEAN_OVER_CREST = (1 + 2 / CREST_OVER_TROUGH) / 3
LATE_SHARE = 0.01
"""More late or failed calls than this, and it is no longer the 99th percentile that holds."""

Call = Callable[[int], Awaitable[object]]


@dataclass(frozen=True)
class Outcome:
    """One wave. `has_held`: at least 99 % of the calls were answered within the bound."""

    num_calls: int
    num_late: int
    has_held: bool
    latencies_s: Sequence[float]
    """Of the calls that were answered, from when each was due."""


def arrivals(crest_per_s: float, seconds: float, rng: random.Random) -> list[float]:
    """Times of Poisson arrivals of one wave, ascending, from 0 to `seconds`."""
    times = []
    now = 0.0
    while (now := now + rng.expovariate(crest_per_s)) < seconds:
        is_crest = seconds / 3 <= now < 2 * seconds / 3
        if is_crest or rng.random() < 1 / CREST_OVER_TROUGH:
            times.append(now)
    return times


def steady_arrivals(per_s: float, seconds: float, rng: random.Random) -> list[float]:
    """The same at one rate."""
    times = []
    now = 0.0
    while (now := now + rng.expovariate(per_s)) < seconds:
        times.append(now)
    return times


async def send_wave(times: list[float], call: Call, bound_s: float) -> Outcome:
    """Every call at its time, whatever became of those before; given up when too many are late already."""
    num_late = 0
    allowed = math.floor(LATE_SHARE * len(times))
    latencies_s: list[float] = []
    started_s = time.monotonic()

    async def one(index: int, at_s: float) -> None:
        nonlocal num_late
        try:
            await call(index)
            latencies_s.append(time.monotonic() - at_s)  # from when it was due: a slow sender hides nothing
            is_late = latencies_s[-1] > bound_s
        except Exception:  # a failed call is a late one, whatever ails it
            is_late = True
        num_late += is_late

    async with asyncio.TaskGroup() as group:
        for index, offset_s in enumerate(times):
            at_s = started_s + offset_s
            if (wait_s := at_s - time.monotonic()) > 0:
                await asyncio.sleep(wait_s)
            if num_late > allowed:
                break
            group.create_task(one(index, at_s))
    return Outcome(len(times), num_late, num_late <= allowed, latencies_s)


def highest_bearable(bears: Callable[[float], bool], low: float, high: float, num_steps: int) -> float:
    """The highest rate found for which `bears` is true, by halving the interval (in logarithms); `low` if none."""
    for _ in range(num_steps):
        middle = math.sqrt(low * high)
        if bears(middle):
            low = middle
        else:
            high = middle
    return low
