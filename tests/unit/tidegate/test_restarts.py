"""When the launcher starts the node again."""

from tidegate.restarts import MAX_QUICK_DEATHS, STEADY_S, RestartPlan, Silence


def test_after_a_steady_life_it_starts_at_once():
    """However often."""
    plan = RestartPlan()
    assert [plan.died(STEADY_S) for _ in range(20)] == [0.0] * 20


def test_quick_deaths_are_answered_ever_later_and_then_given_up():
    """Half a second first, doubled each time."""
    plan = RestartPlan()
    pauses = [plan.died(1.0) for _ in range(MAX_QUICK_DEATHS)]
    assert pauses == [0.5, 1.0, 2.0, 4.0, None]


def test_a_steady_life_makes_up_for_quick_deaths():
    """They are counted in a row."""
    plan = RestartPlan()
    for _ in range(MAX_QUICK_DEATHS - 1):
        plan.died(1.0)
    assert plan.died(STEADY_S + 1) == 0.0
    assert plan.died(1.0) == 0.5


def test_only_silence_in_a_row_is_a_hang():
    """One answer in time and the count begins again."""
    silence = Silence(max_probes=3)
    answers = [False, False, True, False, False, False]
    assert [silence.probed(answer) for answer in answers] == [False, False, False, False, False, True]
