"""Scale-ins that had to be taken back."""

from __future__ import annotations

from dataclasses import replace

from scaler.deciding.decision import State
from scaler.deciding.patience import FORGET_S, after_scale_out, cooldown_in_s, forgotten, window_s
from scaler.deciding.policy import ModelPolicy

POLICY = ModelPolicy()


def test_an_instance_that_is_missed_again_soon_doubles_the_windows() -> None:
    """Gone at 1000, wanted again at 1200: 300 s become 600, then 1200, at most 2400."""
    state = replace(State.adopted(0), last_in_s=1000.0)
    for expected_s in (600, 1200, 2400, 2400):
        state = after_scale_out(state, POLICY, now=1200)
        assert window_s(state, POLICY) == expected_s
    assert cooldown_in_s(state, POLICY) == 960


def test_a_later_scale_out_is_no_reversal() -> None:
    """An hour between them is the tide."""
    state = replace(State.adopted(0), last_in_s=1000.0)
    assert after_scale_out(state, POLICY, now=4600).patience == 1


def test_patience_is_forgotten_by_half_a_day_at_a_time() -> None:
    """Two doublings at 1200: a day later one is left, two days later none."""
    state = replace(State.adopted(0), last_in_s=1000.0)
    state = after_scale_out(after_scale_out(state, POLICY, 1200), POLICY, 1200)
    assert forgotten(state, 1200 + FORGET_S - 1).patience == 4
    state = forgotten(state, 1200 + FORGET_S)
    assert state.patience == 2
    assert forgotten(state, 1200 + 2 * FORGET_S).patience == 1
