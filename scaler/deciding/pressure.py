"""Scale-out: which thresholds are crossed, and how many instances would uncross them. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scaler.deciding.decision import Spec
from scaler.deciding.demand import Demand
from scaler.deciding.observation import Counts, Reading, Signals

MAX_RATIO = 2.0
"""A queue says that there are too few instances, hardly by how many: it at most doubles them."""


@dataclass(frozen=True)
class Crossed:
    """One threshold that is reached."""

    words: str
    """ "queue 37 ≥ 20"."""
    needed: int
    """Instances that would answer it, ready and starting."""
    is_utilization: bool = False


def crossed(spec: Spec, counts: Counts, signals: Signals, demand: Demand) -> list[Crossed]:
    """Empty: nothing presses. A figure that is not usable presses nothing."""
    found = [
        _utilization(spec, counts, demand),
        _queue(spec, counts, signals.queue, signals.busy_s_per_request, demand),
        _queue_time(spec, counts, signals.queue_time_s),
        _concurrency(spec, counts, signals.concurrency),
        _kv_occupancy(spec, counts, signals.kv_occupancy),
    ]
    return [item for item in found if item is not None]


def ceil_count(value: float) -> int:
    """3.0000000001 is 3: sums of measured seconds are not exact."""
    return math.ceil(value - 1e-9)


def _utilization(spec: Spec, counts: Counts, demand: Demand) -> Crossed | None:
    limit = spec.policy.scale_out.utilization
    if limit is None or demand.utilization is None or demand.busy is None or demand.utilization < limit:
        return None
    needed = ceil_count(demand.busy / spec.policy.target_utilization)
    words = f"util {demand.utilization:.2f} ≥ {limit:g}"
    return Crossed(words, max(needed, counts.total + 1), is_utilization=True)


def _queue(
    spec: Spec, counts: Counts, queue: Reading, busy_s_per_request: Reading, demand: Demand
) -> Crossed | None:
    out = spec.policy.scale_out
    if out.queue is None or not queue.is_usable:
        return None
    limit = out.queue * max(counts.ready, 1) if out.queue_per_instance else out.queue
    if queue.value < limit:
        return None
    each = f" ({out.queue:g} each)" if out.queue_per_instance else ""
    words = f"queue {queue.value:.0f} ≥ {limit:g}{each}"
    if counts.starting:
        # It goes on growing until they serve, however many there will be (aibrix#2670).
        return Crossed(words, counts.total)
    if busy_s_per_request.is_usable and busy_s_per_request.value and demand.busy is not None:
        # The new instances are to work the queue off in the time that they took to come, or in a cooldown.
        horizon_s = max(spec.lead_s, spec.policy.cooldown_out_s, 1.0)
        backlog = queue.value * busy_s_per_request.value / horizon_s
        needed = ceil_count((demand.busy + backlog) / spec.policy.target_utilization)
    else:
        needed = ceil_count(counts.total * min(queue.value / limit, MAX_RATIO))
    return Crossed(words, max(needed, counts.total + 1))


def _queue_time(spec: Spec, counts: Counts, queue_time_s: Reading) -> Crossed | None:
    limit = spec.policy.scale_out.queue_time_s
    if limit is None or not queue_time_s.is_usable or queue_time_s.value < limit:
        return None
    words = f"queue time {queue_time_s.value:.2f} s ≥ {limit:g} s"
    if counts.starting:
        return Crossed(words, counts.total)
    ratio = min(queue_time_s.value / limit, MAX_RATIO)
    return Crossed(words, max(ceil_count(counts.total * ratio), counts.total + 1))


def _concurrency(spec: Spec, counts: Counts, concurrency: Reading) -> Crossed | None:
    limit = spec.policy.scale_out.concurrency
    if limit is None or not concurrency.is_usable or counts.total == 0:
        return None
    each = concurrency.value / counts.total
    if each < limit:
        return None
    needed = max(ceil_count(concurrency.value / limit), counts.total + 1)
    return Crossed(f"concurrency {each:.1f} ≥ {limit:g} per instance", needed)


def _kv_occupancy(spec: Spec, counts: Counts, kv_occupancy: Reading) -> Crossed | None:
    limit = spec.policy.scale_out.kv_occupancy
    if limit is None or not kv_occupancy.is_usable or kv_occupancy.value < limit:
        return None
    words = f"KV {kv_occupancy.value:.2f} ≥ {limit:g}"
    if counts.starting:
        return Crossed(words, counts.total)
    return Crossed(words, max(ceil_count(counts.total * kv_occupancy.value / limit), counts.total + 1))
