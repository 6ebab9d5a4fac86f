"""Bug reports of other scalers that this one must not repeat, each played against the loop and the decider.

The issue numbers are those of the projects named; the table is in the research notes.
"""

from __future__ import annotations

import pytest

from scaler.deciding.decision import Cause, Direction
from scaler.deciding.observation import Quality
from scaler.deciding.policy import Policy
from scaler.errors import OwnedByOther, PolicyInvalid
from tests.unit.scaler.rig import POLICY, MeasuredRig, Rig

OUTAGE_S = 600


def with_policy(text: str) -> str:
    return POLICY.replace("min_instances: 1,", f"min_instances: 1, {text},")


async def test_instances_that_start_are_counted_and_not_ordered_again():
    """aibrix#2670, kubernetes#59975: start-up 300 s under 3 busy on one; the count rises once, to what 3 need."""
    rig = Rig()
    rig.target.start_s = 300.0
    rig.load.busy["chat"] = 3.0
    await rig.tick(303)
    assert rig.target.calls == [("chat", 5)]
    assert set(rig.ready) == {1}
    assert rig.view.observation.counts.total == 5
    await rig.tick()
    assert rig.target.ready["chat"] == 5


@pytest.mark.parametrize("num", [2, 3, 5, 10])
@pytest.mark.parametrize("percent", [30, 45, 60, 75, 90])
async def test_a_constant_load_does_not_make_the_count_swing(num, percent):
    """dynamo#9294, ray#18925: N instances at a constant share for half an hour; one change at most."""
    rig = Rig(POLICY.replace("max_instances: 8", "max_instances: 20"))
    rig.target.ready["chat"] = num
    rig.load.busy["chat"] = num * percent / 100
    await rig.tick(360, step_s=5.0)
    assert len(rig.target.calls) <= 1


@pytest.mark.parametrize("quality", [Quality.MISSING, Quality.STALE])
async def test_figures_that_are_not_known_never_scale_in_or_out(quality):
    """dynamo#3131, llm-d#368: 10 min of figures that say 0, then 10 min that say 0.9, both unusable: stays 3."""
    rig = Rig()
    rig.target.ready["chat"] = 3
    rig.load.quality = quality
    for busy in (0.0, 2.7):
        rig.load.busy["chat"] = busy
        decision = await rig.tick(OUTAGE_S)
        assert decision.cause is Cause.UNKNOWN
    assert rig.target.calls == []


@pytest.mark.parametrize("quality", list(Quality))
async def test_the_minimum_is_kept_whatever_is_not_known(quality):
    """dynamo#14575: 1 of min 3 and a metrics outage; 3 at once, with figures of any kind."""
    rig = Rig(POLICY.replace("min_instances: 1", "min_instances: 3"))
    rig.load.quality = quality
    await rig.tick(2)
    assert rig.target.calls == [("chat", 3)]


@pytest.mark.parametrize("quality", [Quality.GOOD, Quality.IDLE])
async def test_no_traffic_is_no_load_and_scales_in(quality):
    """dynamo#6985: a measured 0 and a ratio of nothing bring 4 down to the minimum, not below it."""
    rig = Rig()
    rig.target.ready["chat"] = 4
    rig.load.quality = quality
    await rig.tick(OUTAGE_S)
    assert rig.target.ready["chat"] == 1


async def test_one_instance_that_never_comes_up_does_not_stop_the_scaler():
    """aibrix#617: the first start hangs for ever; it is given up after 60 s, and the next one helps."""
    rig = Rig(with_policy("start_deadline_s: 60"))
    rig.target.start_s = float("inf")
    rig.load.busy["chat"] = 1.3
    await rig.tick(30)
    rig.target.start_s = 0.3
    await rig.tick(120)
    assert rig.target.ready["chat"] > 1
    assert any("gave up" in line for line in rig.said)


async def test_a_scaler_that_has_just_started_wants_nothing_rather_than_zero():
    """keda#1850, #8056: before the first look, and while the count is not known, what is wanted is not known."""
    rig = Rig()
    rig.target.is_down = True
    assert rig.loop.views() == []
    await rig.tick()
    assert rig.view.wanted is None
    rig.target.is_down, rig.target.ready["chat"] = False, 4
    await rig.tick()
    assert rig.view.wanted == 4


async def test_what_is_starting_goes_before_what_serves():
    """ray#43034: 2 serve, 2 start for 300 s, 2 are wanted after all: the start is called off, the 2 serve on."""
    rig = Rig()
    rig.target.ready["chat"] = 2
    rig.target.start_s = 300.0
    rig.book.override("chat", 4, rig.clock() + 3600, rig.clock(), who="ada")
    await rig.tick(20)
    rig.book.override("chat", 2, rig.clock() + 3600, rig.clock(), who="ada")
    await rig.tick(3)
    assert set(rig.ready) == {2}
    assert rig.target.changing == set()
    assert rig.view.observation.counts.total == 2


async def test_a_warm_instance_is_kept_when_load_returns_while_it_drains():
    """ray#63279, kthena#1589: 4→1 drains a long stream when 4 are needed again: all 4 serve on, none is started."""
    rig = Rig()
    rig.target.ready["chat"] = 4
    rig.target.drain_s = 60.0
    rig.load.busy["chat"] = 0.2
    while not rig.target.draining.get("chat"):
        await rig.tick()
    rig.load.busy["chat"] = 2.5
    await rig.tick(10)
    assert rig.target.ready["chat"] == 4
    assert [wanted for _, wanted in rig.target.calls] == [1]


async def test_a_restart_forgets_no_instance_and_takes_none_for_a_window():
    """knative#4795: killed at 5 of 0.5 busy; a new scaler adopts the 5 and reduces only after 300 s."""
    rig = Rig()
    rig.target.ready["chat"] = 5
    rig.load.busy["chat"] = 0.5
    await rig.tick(200)
    rig.restart()
    await rig.tick(299)
    assert set(rig.ready) == {5}
    await rig.tick(120)
    assert rig.target.ready["chat"] < 5


async def test_one_quiet_sample_in_the_window_takes_nothing_away():
    """aibrix's stabiliser took the window's minimum going down: 4 at 60 %, one look at 0 every minute: stays 4."""
    rig = Rig()
    rig.target.ready["chat"] = 4
    for _ in range(10):
        rig.load.busy["chat"] = 2.4
        await rig.tick(59)
        rig.load.busy["chat"] = 0.0
        await rig.tick()
    assert rig.target.calls == []


def test_a_threshold_that_its_metric_cannot_reach_is_refused():
    """LLMKube#482: a utilisation is at most 1, a threshold of 2 would never be reached."""
    with pytest.raises(PolicyInvalid, match="utilization = 2"):
        Policy.parse("models: {chat: {scale_out: {utilization: 2}}}")


async def test_a_second_writer_is_not_written_against():
    """LLMKube#484: somebody else owns the count; for 10 min nothing moves, with a try a minute, and it is shown."""
    rig = Rig()
    rig.load.busy["chat"] = 5.0
    rig.target.error = OwnedByOther("chat is scaled by pid 4711 of another scaler")
    await rig.tick(OUTAGE_S)
    assert set(rig.ready) == {1}
    assert len(rig.target.calls) <= 20
    assert "pid 4711" in rig.view.last_error


async def test_rounding_never_takes_one_more_away_than_the_demand_allows():
    """ray#46148: 3.25 busy need 6 at 60 %; from 10 that is one change, and then none for an hour."""
    rig = Rig(POLICY.replace("max_instances: 8", "max_instances: 10"))
    rig.target.ready["chat"] = 10
    rig.load.busy["chat"] = 3.25
    await rig.tick(720, step_s=5.0)
    assert rig.target.calls == [("chat", 6)]


async def test_a_target_that_cannot_be_reached_grows_to_the_maximum_and_says_so():
    """dynamo#11624: 50 busy and at most 8: 8, never more, never negative, and saturated while the queue grows."""
    rig = Rig()
    rig.load.busy["chat"] = 50.0
    decision = await rig.tick(OUTAGE_S)
    assert rig.target.ready["chat"] == 8
    assert decision.is_saturated
    assert decision.direction is Direction.HOLD


async def test_nothing_is_reduced_while_the_metrics_endpoint_is_dead():
    """10 min without pending counts at next to no load: stays 4; when they are back, it goes on by itself."""
    rig = MeasuredRig()
    rig.target.ready["chat"] = 4
    rig.load.busy["chat"] = 2.0
    await rig.tick(60)
    rig.triton.metrics_down = True
    rig.load.busy["chat"] = 0.1
    await rig.tick(OUTAGE_S)
    assert set(rig.ready) == {4}
    rig.triton.metrics_down = False
    await rig.tick(400)
    assert rig.target.ready["chat"] == 1


async def test_load_still_adds_instances_while_the_metrics_endpoint_is_dead():
    """What Triton's statistics say is enough: 3 busy on 1 for 10 min."""
    rig = MeasuredRig()
    rig.load.busy["chat"] = 0.3
    await rig.tick(60)
    rig.triton.metrics_down = True
    rig.load.busy["chat"] = 3.0
    await rig.tick(OUTAGE_S)
    assert rig.target.ready["chat"] >= 4


async def test_a_dead_triton_changes_nothing_and_gets_its_instances_back():
    """10 min away at 4, back with the 1 of its repository: 4 within two ticks, and below the minimum at no time."""
    rig = MeasuredRig()
    rig.target.ready["chat"] = 4
    rig.load.busy["chat"] = 2.0
    await rig.tick(60)
    rig.triton.is_down = rig.target.is_down = True
    await rig.tick(OUTAGE_S)
    assert rig.target.calls == []
    rig.triton.is_down = rig.target.is_down = False
    rig.triton.models["chat"].reload()
    rig.target.ready["chat"] = 1
    await rig.tick(2)
    assert rig.target.ready["chat"] == 4
    await rig.tick(60)
    assert set(rig.ready[-60:]) == {4}


async def test_a_dead_node_changes_nothing_of_its_generate_models():
    """10 min away: neither counts nor places are known; back, 3 serve on and load of 2.9 is answered again."""
    rig = MeasuredRig(is_generate=True)
    rig.target.ready["chat"] = 3
    rig.load.busy["chat"] = 1.0
    await rig.tick(60)
    rig.node.is_down = rig.target.is_down = True
    await rig.tick(OUTAGE_S)
    assert set(rig.ready) == {3}
    rig.node.is_down = rig.target.is_down = False
    rig.load.busy["chat"] = 2.9
    await rig.tick(30)
    assert rig.target.ready["chat"] > 3


async def test_a_scaler_that_was_killed_for_ten_minutes_finds_what_it_left():
    """Killed at 3 under 2 busy, and the tide rises to 4 meanwhile: 3 throughout, and more soon after its return."""
    rig = MeasuredRig()
    rig.target.ready["chat"] = 3
    rig.load.busy["chat"] = 1.5
    await rig.tick(60)
    rig.load.busy["chat"] = 4.0
    rig.clock.advance(OUTAGE_S)
    rig.restart()
    await rig.tick(30)
    assert min(rig.ready) == 3
    assert rig.target.ready["chat"] >= 6
