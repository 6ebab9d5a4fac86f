"""Learns from scale-ins that had to be taken back: each one doubles the windows of the next. Pure.

A window of 300 s is long for one load and short for another, and noise weighs more on two instances than on twenty.
So an instance that is missed again within a window was taken too early, and the model waits twice as long from then
on; a day without one lowers that again.
"""

from __future__ import annotations

from dataclasses import replace

from scaler.deciding.decision import State
from scaler.deciding.policy import ModelPolicy

MAX_PATIENCE = 8.0
FORGET_S = 24 * 3600.0
"""Halved after so long without another reversal: tides come once a day."""


def window_s(state: State, policy: ModelPolicy) -> float:
    """What the survivors' rule looks back on."""
    return policy.scale_in.window_s * state.patience


def cooldown_in_s(state: State, policy: ModelPolicy) -> float:
    return policy.cooldown_in_s * state.patience


def after_scale_out(state: State, policy: ModelPolicy, now: float) -> State:
    """Load pressed for another instance: was one taken away shortly before?"""
    if state.last_in_s is None or now - state.last_in_s > 2 * policy.scale_in.window_s:
        return state
    return replace(state, patience=min(2 * state.patience, MAX_PATIENCE), reversed_s=now)


def forgotten(state: State, now: float) -> State:
    """Lower by half what has proved unneeded for long."""
    if state.patience == 1.0 or state.reversed_s is None or now - state.reversed_s < FORGET_S:
        return state
    return replace(state, patience=max(1.0, state.patience / 2), reversed_s=now)
