"""Measured start-up times."""

from __future__ import annotations

from scaler.deciding.policy import ModelPolicy
from scaler.deciding.start_times import UNKNOWN_LEAD_S, StartTimes


def test_the_lead_is_a_high_percentile_of_the_last_starts() -> None:
    """19 of 1 s and one of 9 s: 1 s, as the 95th percentile of 20 is the 19th; two of 9 s: 9 s."""
    times = StartTimes()
    for seconds in [1.0] * 19 + [9.0]:
        times.started("chat", seconds)
    assert times.lead_s("chat", ModelPolicy()) == 1.0
    times.started("chat", 9.0)
    assert times.lead_s("chat", ModelPolicy()) == 9.0


def test_the_policy_s_own_lead_comes_first() -> None:
    """Nothing measured: a cautious default, unless the policy says 120."""
    assert StartTimes().lead_s("chat", ModelPolicy()) == UNKNOWN_LEAD_S
    assert StartTimes().lead_s("chat", ModelPolicy(lead_time_s=120)) == 120
