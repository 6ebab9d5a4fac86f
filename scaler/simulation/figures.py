"""What a replay comes to: what it cost, who waited, how much it moved."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from scaler.simulation.fleet import Change
from scaler.simulation.queueing import Waits
from scaler.simulation.trace import Floats

FLIP_WITHIN_S = 300.0
DAY_S, WEEK_S = 86400.0, 7 * 86400.0


@dataclass(frozen=True)
class Figures:
    """Shares are from 0 to 1."""

    policy: str
    trace: str
    startup_s: float
    cost_share: float
    """Instance-seconds, those that start or drain included / those of the static peak (ten instances)."""
    mean_instances: float
    started_5s_share: float
    """Requests that waited at most 5 s before they were begun / all requests."""
    started_30s_share: float
    wait_p50_s: float
    wait_p99_s: float
    wait_p999_s: float
    wait_max_s: float
    flips: int
    """Changes in the opposite direction of the one before, at most 300 s after it."""
    flips_per_day: float
    num_changes: int
    changes_per_week: float
    peak_instances: int
    """Ready and starting, the most at any time."""
    peak_over_needed: float
    """`peak_instances` / what the busiest minute needs at 70 %."""
    utilization_mean: float
    """Work / what the serving instances could have done."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def in_words(self) -> str:
        return (
            f"{self.trace} {self.policy}, start-up {self.startup_s:g} s: cost {self.cost_share:.1%}, "
            f"started ≤ 5 s {self.started_5s_share:.3%}, ≤ 30 s {self.started_30s_share:.3%}, "
            f"{self.flips_per_day:.2f} flips a day, {self.changes_per_week:.0f} changes a week, "
            f"peak {self.peak_instances} = {self.peak_over_needed:.2f} × needed, "
            f"mean {self.mean_instances:.2f} instances"
        )


def count_flips(changes: Sequence[Change]) -> int:
    """Out 4→5 at 0 s and in 5→4 at 300 s is one; at 301 s none."""
    flips = 0
    for earlier, later in itertools.pairwise(changes):
        is_reversal = (earlier.after > earlier.before) != (later.after > later.before)
        flips += is_reversal and later.at_s - earlier.at_s <= FLIP_WITHIN_S
    return flips


def started_within(waits: Waits, seconds: float) -> float:
    """The share; 1.0 of no requests."""
    total = waits.weights.sum()
    return float(waits.weights[waits.waits_s <= seconds + 1e-9].sum() / total) if total else 1.0


def wait_percentiles(waits: Waits, shares: Sequence[float]) -> list[float]:
    """Weighted, nearest rank."""
    if not len(waits.waits_s):
        return [0.0] * len(shares)
    order = np.argsort(waits.waits_s)
    passed = np.cumsum(waits.weights[order])
    at = np.searchsorted(passed, np.array(shares) * passed[-1])
    found: Floats = waits.waits_s[order][np.minimum(at, len(order) - 1)]
    return [float(value) for value in found]
