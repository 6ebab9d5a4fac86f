"""Scale-in: is it quiet, for how long, and how few instances would still be healthy. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from scaler.deciding import patience
from scaler.deciding.decision import Cause, Spec, State
from scaler.deciding.demand import Demand, peak
from scaler.deciding.observation import Counts, Reading, Signals
from scaler.deciding.pressure import ceil_count


@dataclass(frozen=True)
class Easing:
    """The count that would do, and why."""

    needed: int
    cause: Cause
    words: str


def unknown(spec: Spec, signals: Signals, demand: Demand) -> list[str]:
    """Figures that a scale-in needs and does not have: of everything that may push out again, and the demand."""
    out = spec.policy.scale_out
    asked: list[tuple[str, Reading, bool]] = [
        ("queue", signals.queue, out.queue is not None),
        ("queue time", signals.queue_time_s, out.queue_time_s is not None),
        ("concurrency", signals.concurrency, out.concurrency is not None),
        ("KV", signals.kv_occupancy, out.kv_occupancy is not None),
    ]
    names = [
        f"{name} {reading.quality.value}"
        for name, reading, is_asked in asked
        if is_asked and not reading.is_usable
    ]
    if demand.busy is None:
        names.insert(0, f"util {signals.utilization.quality.value}")
    return names


def is_quiet(spec: Spec, counts: Counts, signals: Signals, demand: Demand) -> bool:
    """Are all in thresholds kept, all of them known?"""
    if unknown(spec, signals, demand) or demand.utilization is None:
        return False
    return demand.utilization <= spec.policy.scale_in.utilization and _queue_is_short(spec, counts, signals)


def easing(spec: Spec, state: State, counts: Counts, signals: Signals, now: float) -> Easing | None:
    """What both rules together would leave, the smaller count first; None when neither has held for long enough.

    The thresholds' rule looks at the cooldown and needs the quiet; the survivors' rule looks at the longer window
    and needs no quiet, because what it leaves would have borne all of it.
    """
    policy = spec.policy
    quiet_s, window_s = patience.cooldown_in_s(state, policy), patience.window_s(state, policy)
    found = []
    limit = policy.scale_in.survivors_utilization or policy.target_utilization
    if state.quiet_since_s is not None and now - state.quiet_since_s >= quiet_s:
        highest = peak(state, quiet_s, now)
        if highest is not None:
            words = (
                f"util ≤ {policy.scale_in.utilization:g} and queue ≤ {policy.scale_in.queue:g} for "
                f"{quiet_s:g} s"
            )
            found.append((Cause.QUIET, highest, words))
    if policy.scale_in.survivors_utilization is not None and _queue_is_short(spec, counts, signals):
        highest = peak(state, window_s, now)
        if highest is not None:
            words = f"at most {highest:.2f} busy in {window_s:g} s"
            found.append((Cause.SURPLUS, highest, words))
    options = [
        Easing(needed, cause, f"{words}; {needed} would be {highest / needed:.2f} busy")
        for cause, highest, words in found
        if (needed := _healthy_count(spec, counts, signals, highest / limit)) < counts.total
    ]
    return min(options, key=lambda item: item.needed, default=None)


def _healthy_count(spec: Spec, counts: Counts, signals: Signals, by_demand: float) -> int:
    """The least count at which nothing would push out again: the other figures grow as N / (N - 1)."""
    out, needed = spec.policy.scale_out, max(1, ceil_count(by_demand))
    if out.concurrency is not None:
        needed = max(needed, int(signals.concurrency.value / out.concurrency) + 1)
    if out.kv_occupancy is not None:
        needed = max(needed, int(signals.kv_occupancy.value * counts.total / out.kv_occupancy) + 1)
    return needed


def _queue_is_short(spec: Spec, counts: Counts, signals: Signals) -> bool:
    if not signals.queue.is_usable:
        return False
    limit = spec.policy.scale_in.queue
    if spec.policy.scale_out.queue_per_instance:
        limit *= max(counts.ready, 1)
    return signals.queue.value <= limit
