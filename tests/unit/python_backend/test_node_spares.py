"""When the next spare worker is started. All times are numbers, nothing sleeps."""

from __future__ import annotations

import pytest

from python_backend.node.spares import Demand, SparePlanner


def demand(model: str = "chat", spares: int = 0, warming: int = 0, waiting: int = 0) -> Demand:
    return Demand(model, num_spares=spares, num_warming=warming, num_waiting=waiting)


def planner(max_warming: int = 2, **targets: int) -> SparePlanner:
    return SparePlanner(targets or {"chat": 2}, max_warming, replenish_delay_s=0.3)


def test_spares_are_started_one_at_a_time() -> None:
    """Warm-ups share the CPUs with who serves."""
    plan = planner().plan([demand()], now=0)
    assert plan.spawn == ("chat",)
    assert planner().plan([demand(warming=1)], now=0).spawn == ()


def test_with_all_spares_there_nothing_is_started() -> None:
    """And nothing is planned for later."""
    plan = planner().plan([demand(spares=2)], now=0)
    assert (plan.spawn, plan.retry_at) == ((), None)


def test_the_model_with_the_smaller_share_of_its_spares_comes_first() -> None:
    """chat has half of its two, embed nothing of its one."""
    spares = planner(chat=2, embed=1)
    assert spares.plan([demand("chat", spares=1), demand("embed")], now=0).spawn == ("embed",)


def test_after_an_attach_replenishing_waits_a_moment() -> None:
    """The new instance's first token goes before the next spare's warm-up."""
    spares = planner()
    spares.attached(now=10.0)
    plan = spares.plan([demand(spares=1)], now=10.1)
    assert (plan.spawn, plan.retry_at) == ((), 10.3)
    assert spares.plan([demand(spares=1)], now=10.3).spawn == ("chat",)


def test_an_instance_that_waits_is_served_at_once() -> None:
    """No quiet time holds up who has no worker."""
    spares = planner()
    spares.attached(now=10.0)
    assert spares.plan([demand(waiting=1)], now=10.0).spawn == ("chat",)


def test_a_worker_that_warms_up_already_counts_for_who_waits() -> None:
    """Two wait, one is on its way: one more."""
    assert planner().plan([demand(waiting=2, warming=1)], now=0).spawn == ("chat",)


def test_no_more_workers_warm_up_together_than_may() -> None:
    """Eight at once on two cores would all be slow."""
    assert planner(max_warming=2).plan([demand(waiting=8)], now=0).spawn == ("chat", "chat")
    assert planner(max_warming=2).plan([demand(waiting=8, warming=2)], now=0).spawn == ()


def test_a_model_without_spares_still_gets_workers_on_demand() -> None:
    """A target of zero is allowed."""
    spares = planner(chat=0)
    assert spares.plan([demand()], now=0).spawn == ()
    assert spares.plan([demand(waiting=1)], now=0).spawn == ("chat",)


def test_failures_in_a_row_are_spaced_further_and_further() -> None:
    """A worker that cannot warm up must not become a fork bomb."""
    spares = planner()
    waits = []
    for _ in range(9):
        spares.died_warming("chat", now=0.0)
        plan = spares.plan([demand(waiting=1)], now=0.0)
        assert plan.spawn == ()
        waits.append(plan.retry_at)
    assert waits == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]


def test_a_model_whose_workers_die_does_not_hold_up_another() -> None:
    """The other one's spares are replenished meanwhile."""
    spares = planner(chat=1, embed=1)
    spares.died_warming("chat", now=0.0)
    plan = spares.plan([demand("chat", waiting=1), demand("embed")], now=0.0)
    assert (plan.spawn, plan.retry_at) == (("embed",), 0.5)


def test_a_warm_worker_ends_the_row_of_failures() -> None:
    """Three in a row are hopeless, three in a month are not."""
    spares = planner()
    for _ in range(3):
        spares.died_warming("chat", now=0.0)
    assert spares.keeps_dying("chat")
    spares.warmed("chat", num_spares=1)
    assert not spares.keeps_dying("chat")
    assert spares.plan([demand(waiting=1)], now=0.0).spawn == ("chat",)


def test_prepared_spares_are_wanted_once() -> None:
    """When they stood by, the target alone counts again."""
    spares = planner(chat=1)
    spares.prepare("chat", 3)
    assert spares.plan([demand(spares=2)], now=0).spawn == ("chat",)
    spares.warmed("chat", num_spares=3)
    assert spares.plan([demand(spares=2)], now=0).spawn == ()


@pytest.mark.parametrize("num_spares", [0, 1])
def test_prepared_spares_do_not_wait_for_the_quiet_time(num_spares: int) -> None:
    """The scaler asks for them because it is about to need them."""
    spares = planner(chat=1)
    spares.attached(now=0.0)
    spares.prepare("chat", 2)
    assert spares.plan([demand(spares=num_spares)], now=0.0).spawn == ("chat",)
