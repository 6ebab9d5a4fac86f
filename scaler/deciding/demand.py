"""How much work there is, in instances; and what is remembered of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from scaler.deciding.decision import Sample, State
from scaler.deciding.observation import Observation
from scaler.deciding.patience import cooldown_in_s, window_s
from scaler.deciding.policy import ModelPolicy

QUEUE_LOOK_BACK_S = 10.0
MAX_GAP_S = 10.0
"""A longer silence of the figures breaks a window."""


@dataclass(frozen=True)
class Demand:
    """`busy`: how many instances would be at work all the time; None when no figure tells."""

    busy: float | None
    utilization: float | None
    """Of ready and starting instances together (aibrix#2670): what it will be when those serve."""


def measure(observation: Observation) -> Demand:
    """Utilisation tells no more than that every instance is busy, so where arrivals and their cost are known, they
    count when they say more."""
    counts, signals = observation.counts, observation.signals
    if counts is None:
        return Demand(None, None)
    busy = signals.utilization.value * counts.ready if signals.utilization.is_usable else None
    if signals.arrivals_per_s.is_usable and signals.busy_s_per_request.is_usable:
        offered = signals.arrivals_per_s.value * signals.busy_s_per_request.value
        busy = max(busy, offered) if busy is not None else offered
    if busy is None or counts.total == 0:
        return Demand(busy, None)
    return Demand(busy, busy / counts.total)


def remember(state: State, policy: ModelPolicy, observation: Observation, now: float) -> State:
    """`state` with this observation's demand and queue in its windows."""
    busy, queue = measure(observation).busy, observation.signals.queue
    if busy is not None:
        kept_s = max(window_s(state, policy), cooldown_in_s(state, policy))
        peaks = [sample for sample in state.peaks if sample.value > busy and sample.at_s > now - kept_s]
        is_fresh = state.known_since_s is None
        state = replace(
            state,
            peaks=(*peaks, Sample(now, busy)),
            known_since_s=now if is_fresh else state.known_since_s,
        )
    elif state.peaks and now - state.peaks[-1].at_s > MAX_GAP_S:
        state = replace(state, known_since_s=None)
    if queue.is_usable:
        recent = [sample for sample in state.queue if sample.at_s >= now - QUEUE_LOOK_BACK_S]
        state = replace(state, queue=(*recent, Sample(now, queue.value)))
    return state


def peak(state: State, look_back_s: float, now: float) -> float | None:
    """The highest demand of the last `look_back_s`; None when it is not known for all of it."""
    if state.known_since_s is None or state.known_since_s > now - look_back_s:
        return None
    return next((sample.value for sample in state.peaks if sample.at_s >= now - look_back_s), None)


def queue_grows(state: State, now: float) -> bool:
    """Is the queue longer than it was at the beginning of the last seconds?"""
    recent = [sample for sample in state.queue if sample.at_s >= now - QUEUE_LOOK_BACK_S]
    return len(recent) > 1 and recent[-1].value > recent[0].value
