"""The loop over a target, a load and a clock that are made up."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from scaler.deciding.decision import Cause, Decision, Direction, Floor, Spec, State
from scaler.deciding.forecast import Forecaster
from scaler.deciding.observation import Observation
from scaler.deciding.start_times import UNKNOWN_LEAD_S
from scaler.errors import LoadRefused
from scaler.looping.loop import Loop
from scaler.testing import FakeClock, settle
from tests.unit.scaler.rig import POLICY, Rig

HOLD = -1


def told(*wanted: int) -> Any:
    """A decider that says these counts one after the other (HOLD: what there is), then holds."""
    left = list(wanted)

    def decide(spec: Spec, state: State, observation: Observation, now: float) -> Decision:
        before = observation.counts.total if observation.counts else 0
        told_now = left.pop(0) if left and not spec.is_paused else HOLD
        want = before if told_now == HOLD else told_now
        direction = Direction.OUT if want > before else Direction.IN if want < before else Direction.HOLD
        cause = Cause.STEADY if direction is Direction.HOLD else Cause.PRESSURE
        if direction is Direction.OUT:
            state = State(since_s=state.since_s, last_out_s=now)
        return Decision(spec.model, now, before, want, direction, cause, f"{before}→{want}", False, state)

    return decide


async def test_pressure_adds_instances_once_and_counts_them_while_they_start():
    """3.5 busy on one, start-up 30 s: one call after the hold of 3 s, and no other while it starts."""
    rig = Rig()
    rig.target.start_s = 30.0
    rig.load.busy["chat"] = 3.5
    await rig.tick(10)
    assert len(rig.target.calls) == 1
    wanted = rig.target.calls[0][1]
    assert rig.view.observation.counts.total == wanted
    assert rig.view.change.num_wanted == wanted
    await rig.tick(25)
    assert len(rig.target.calls) == 1
    assert rig.target.ready["chat"] == wanted
    assert rig.view.change is None


async def test_a_tick_does_not_wait_for_the_change_that_it_starts():
    """A start of 300 s; the tick returns at once and the next one is made."""
    rig = Rig(options={"decide": told(4)})
    rig.target.start_s = 300.0
    await asyncio.wait_for(rig.tick(2), timeout=5)
    assert rig.target.changing == {"chat"}


async def test_load_that_returns_takes_a_drain_back():
    """4→2 drains when 3 are wanted: the drain is cancelled, all 4 serve on, and nothing else is called."""
    rig = Rig(options={"decide": told(2, HOLD, 3)})
    rig.target.ready["chat"] = 4
    rig.target.drain_s = 60.0
    await rig.tick(2)
    assert (rig.target.ready["chat"], rig.target.draining["chat"]) == (2, 2)
    await rig.tick()
    assert rig.target.ready["chat"] == 4
    assert rig.target.calls == [("chat", 2)]
    assert any("taking a drain back" in line for line in rig.said)


async def test_more_than_a_drain_gives_back_is_added_after_it():
    """3→2 drains when 6 are wanted: 3 at once, then the other three in the same change, of which the view tells."""
    rig = Rig(options={"decide": told(2, 6)})
    rig.target.ready["chat"] = 3
    rig.target.drain_s = rig.target.start_s = 60.0
    await rig.tick(2)
    assert rig.target.calls == [("chat", 2), ("chat", 6)]
    await rig.tick(30)
    assert (rig.view.change.num_wanted, rig.view.wanted) == (6, 6)
    await rig.tick(31)
    assert rig.target.ready["chat"] == 6
    assert rig.view.change is None
    assert rig.target.num_overlaps == 0


async def test_instances_on_their_way_out_are_not_counted_before_the_drain_has_begun():
    """The target still says 4 ready in the tick after 4→2; the decision sees 2, and 2 that drain."""
    rig = Rig(options={"decide": told(2)})
    rig.target.ready["chat"] = 4
    started = asyncio.Event()

    async def slow(model: str, wanted: int, reason: str):
        await started.wait()

    rig.target.scale = slow
    await rig.tick(2)
    counts = rig.view.observation.counts
    assert (counts.ready, counts.draining, counts.total) == (2, 2, 2)
    await rig.loop.stop()


async def test_a_start_that_does_not_come_is_given_up_and_no_longer_counted():
    """Deadline 60 s, an instance that never serves: counted as pending for 60 s, then said and dropped."""
    rig = Rig(
        POLICY.replace("min_instances: 1,", "min_instances: 1, start_deadline_s: 60,"),
        options={"decide": told(3)},
    )
    rig.target.start_s = float("inf")
    await rig.tick(60)
    assert rig.view.observation.counts.total == 3
    await rig.tick(3)
    assert rig.view.observation.counts.total == 1
    assert "gave up 2 instances that have not come up in 60 s" in rig.view.last_error
    assert rig.target.changing == set()


async def test_a_start_that_cannot_even_be_cancelled_blocks_the_model_and_is_shown():
    """The server has the call and does not answer: no second change beside it, and the view says why."""
    rig = Rig(
        POLICY.replace("min_instances: 1,", "min_instances: 1, start_deadline_s: 60,"),
        options={"decide": told(3, *itertools.repeat(HOLD, 62), 4, 4)},
    )
    done = asyncio.Event()

    async def stuck(model: str, wanted: int, reason: str):
        rig.target.calls.append((model, wanted))
        while not done.is_set():
            try:
                await done.wait()
            except asyncio.CancelledError:
                continue

    rig.target.scale = stuck
    await rig.tick(65)
    assert rig.view.change.is_given_up
    assert rig.target.calls == [("chat", 3)]
    assert any("a change that was given up has not ended" in line for line in rig.said)
    done.set()
    await rig.loop.stop()


async def test_pending_instances_that_were_there_at_the_start_have_a_deadline_too():
    """A scaler that was restarted in the middle of a start: 2 starting for 301 s are given up."""
    rig = Rig(options={"decide": told()})
    rig.target.starting["chat"] = 2
    await rig.tick(300)
    assert rig.view.observation.counts.total == 3
    await rig.tick(2)
    assert rig.view.observation.counts.total == 1


async def test_each_instance_that_comes_up_begins_the_deadline_anew():
    """One of three after 200 s each: never given up."""
    rig = Rig(options={"decide": told()})
    rig.target.starting["chat"] = 3
    for _ in range(3):
        await rig.tick(200)
        rig.target.starting["chat"] -= 1
        rig.target.ready["chat"] += 1
    await rig.tick()
    assert rig.view.last_error == ""
    assert rig.view.observation.counts.ready == 4


async def test_more_that_is_asked_for_begins_the_deadline_anew():
    """2 wanted, and 4 after 50 s of its 60: at 65 s nothing has been given up."""
    rig = Rig(
        POLICY.replace("min_instances: 1,", "min_instances: 1, start_deadline_s: 60,"),
        options={"decide": told(2, *itertools.repeat(HOLD, 49), 4)},
    )
    rig.target.start_s = float("inf")
    await rig.tick(65)
    assert rig.view.last_error == ""
    assert rig.view.observation.counts.total == 4
    await rig.tick(50)
    assert "gave up 3 instances" in rig.view.last_error
    assert rig.view.observation.counts.total == 1


async def test_a_change_that_fails_is_tried_again_with_growing_pauses():
    """Refused every time, pressing all the while: at 1, 2, 4, 8, 16, 32, then 60 s apart; the cooldown of 60 s
    for changes that did not happen does not count."""
    rig = Rig(options={"decide": told(*itertools.repeat(2, 100))})
    rig.target.error = LoadRefused("no such file")
    await rig.tick(64)
    assert len(rig.target.calls) == 7
    assert "LoadRefused: no such file" in rig.view.last_error
    assert len([line for line in rig.said if "failed" in line]) == 1


async def test_a_success_forgets_the_failures_before_it():
    """Failed three times, then done, then failed again: tried again after 1 s, not after 8."""
    rig = Rig(options={"decide": told(*itertools.repeat(2, 8), HOLD, 3, 3)})
    rig.target.error = LoadRefused("no")
    await rig.tick(4)
    rig.target.error = None
    await rig.tick(5)
    assert rig.target.ready["chat"] == 2
    rig.target.error, rig.target.calls = LoadRefused("no"), []
    await rig.tick(2)
    assert rig.target.calls == [("chat", 3), ("chat", 3)]


async def test_a_change_that_failed_leaves_no_cooldown_behind():
    """Cooldown 600 s, refused for half a minute: the next try comes a minute later at most."""
    rig = Rig(POLICY.replace("min_instances: 1", "min_instances: 1, cooldown_out_s: 600"))
    rig.load.busy["chat"] = 3.5
    rig.target.error = LoadRefused("no")
    await rig.tick(30)
    rig.target.error = None
    await rig.tick(70)
    assert rig.target.ready["chat"] > 1
    assert rig.view.last_error == ""


async def test_scale_outs_that_failed_do_not_make_it_more_patient():
    """One reversal doubles the scale-in windows; ten failed tries of the same one double them once."""
    rig = Rig()
    rig.target.ready["chat"] = 4
    rig.load.busy["chat"] = 0.3
    await rig.tick(310)
    rig.load.busy["chat"] = 3.0
    rig.target.error = LoadRefused("no")
    await rig.tick(200)
    rig.target.error = None
    decision = await rig.tick(100)
    assert rig.target.ready["chat"] > 3
    assert decision.state.patience == 2.0


async def test_the_wait_for_a_failed_change_is_said_with_the_decision():
    """Steady again between two tries, then wanted again too early: one line with all three."""
    rig = Rig(options={"decide": told(2, 2, HOLD, 2, HOLD, 2)})
    rig.target.error = LoadRefused("no such file")
    await rig.tick(6)
    assert len(rig.target.calls) == 3
    assert rig.said[-1] == "1→2 (not now: next try in 2 s, 1→2 failed: LoadRefused: no such file)"


async def test_a_started_loop_adopts_what_runs():
    """6 run with next to no load; a fresh scaler leaves them for a whole window (300 s) and then reduces."""
    rig = Rig()
    rig.target.ready["chat"] = 6
    rig.load.busy["chat"] = 0.1
    await rig.tick(299)
    assert rig.target.calls == []
    await rig.tick(10)
    assert [wanted for _, wanted in rig.target.calls] == [1]


async def test_nothing_is_changed_while_the_count_is_unknown():
    """The target cannot say for 10 min under full load: no call."""
    rig = Rig()
    rig.load.busy["chat"] = 5.0
    rig.target.is_down = True
    decision = await rig.tick(600)
    assert decision.cause is Cause.UNKNOWN
    assert rig.target.calls == []
    assert rig.view.wanted is None


async def test_what_served_before_an_outage_is_brought_back_after_it():
    """4 served; Triton comes back after 10 min with the 1 of its repository: 4 again at once, load or none."""
    rig = Rig()
    rig.target.ready["chat"] = 4
    rig.load.busy["chat"] = 2.0
    await rig.tick(5)
    rig.target.is_down = True
    await rig.tick(600)
    rig.target.is_down, rig.target.ready["chat"] = False, 1
    decision = await rig.tick()
    assert (decision.wanted, decision.cause) == (4, Cause.FLOOR)
    assert "4 served before an outage of 600 s" in decision.reason
    await rig.tick()
    assert rig.target.ready["chat"] == 4


async def test_instances_that_wait_for_a_new_node_are_not_taken_for_idle():
    """4 served; the node dies and comes back: 4 without workers for 90 s, requests fail and nothing is busy. They
    stay, also for a window of 60 s after they serve again, while the figures look back on the outage."""
    rig = Rig(POLICY.replace("chat: {", "chat: {scale_in: {window_s: 60}, "))
    rig.target.ready["chat"], rig.load.busy["chat"] = 4, 2.4
    await rig.tick(130)
    rig.target.is_down = True
    await rig.tick()
    rig.target.is_down, rig.load.busy["chat"] = False, 0.0
    rig.target.ready["chat"], rig.target.starting["chat"] = 0, 4
    await rig.tick(90)
    rig.target.ready["chat"], rig.target.starting["chat"] = 4, 0
    await rig.tick(59)
    assert rig.target.calls == []
    rig.load.busy["chat"] = 2.4
    await rig.tick(200)
    assert rig.target.calls == []


async def test_what_was_only_asked_for_before_an_outage_is_decided_anew():
    """1 served and 3 were starting for 300 s when nobody could say any more; then there is 1: no floor at 4."""
    rig = Rig(options={"decide": told(4)})
    rig.target.start_s = 300.0
    await rig.tick(5)
    rig.target.is_down = True
    rig.target.error = LoadRefused("Triton has gone")
    await rig.tick(350)
    rig.target.is_down, rig.target.ready["chat"] = False, 1
    await rig.tick()
    assert [floor.num_instances for floor in rig.view.spec.floors] == [1]


async def test_what_an_outage_brought_back_goes_again_when_nobody_needs_it():
    """4 served before it, and 0.1 busy after it: 4 for a window of 300 s, then fewer."""
    rig = Rig()
    rig.target.ready["chat"] = 4
    rig.load.busy["chat"] = 0.1
    await rig.tick(5)
    rig.target.is_down = True
    await rig.tick(60)
    rig.target.is_down, rig.target.ready["chat"] = False, 1
    await rig.tick(2)
    await rig.tick(290)
    assert set(rig.ready[-290:]) == {4}
    await rig.tick(400)
    assert rig.target.ready["chat"] == 1


async def test_a_count_that_somebody_lowered_by_hand_is_left_alone():
    """4→1 from one tick to the next, without an outage: no floor of ours fights it."""
    rig = Rig()
    rig.target.ready["chat"] = 4
    await rig.tick(5)
    rig.target.ready["chat"] = 1
    await rig.tick(5)
    assert rig.target.calls == []


async def test_one_models_fault_is_not_the_others():
    """The figures of `bad` make the collector raise: `chat` scales, `bad` stays and shows why."""
    rig = Rig(POLICY + "  bad: {forecast: {enabled: false}}\n")
    rig.load.broken["bad"] = ZeroDivisionError("division by zero")
    rig.load.busy["chat"] = 3.5
    await rig.tick(6)
    assert {model for model, _ in rig.target.calls} == {"chat"}
    bad = next(view for view in rig.loop.views() if view.model == "bad")
    assert bad.last_error == "not decided: ZeroDivisionError: division by zero"
    assert len([line for line in rig.said if "ZeroDivisionError" in line]) == 1
    rig.load.broken.clear()
    await rig.tick()
    assert [view.last_error for view in rig.loop.views()] == ["", ""]


async def test_a_model_that_leaves_the_policy_is_left_as_it_is():
    """4→2 drains when the policy drops it: the drain is taken back, and nobody changes it any more."""
    rig = Rig(options={"decide": told(2)})
    rig.target.ready["chat"] = 4
    rig.target.drain_s = 60.0
    await rig.tick()
    rig.book.set_policy("models: {}", rig.clock())
    await rig.loop.tick(rig.clock.advance(1.0))
    await settle()
    assert rig.target.ready["chat"] == 4
    assert rig.loop.views() == []
    assert rig.load.forgotten == ["chat"]


async def test_a_model_that_joins_the_policy_is_adopted_then():
    """Named 100 s after the start: its windows begin then."""
    rig = Rig()
    await rig.tick(100)
    rig.book.set_policy(POLICY + "  embed: {min_instances: 2}\n", rig.clock())
    decision = await rig.tick(model="embed")
    assert (decision.before, decision.wanted) == (0, 2)


async def test_one_line_is_said_per_change_and_per_new_cause():
    """Steady for a minute, then 1→2: the decision, its end, and steady again."""
    rig = Rig(options={"decide": told(*itertools.repeat(HOLD, 60), 2)})
    await rig.tick(70)
    assert rig.said == ["1→1", "1→2", "chat 1→2 done in 1.00 s", "2→2"]


async def test_load_that_plays_around_a_threshold_does_not_fill_the_log():
    """0.6 and 0.8 busy by turns for two minutes: each cause is said once a minute, to readers each time."""
    rig = Rig()
    with rig.loop.subscribe() as views:
        for busy in itertools.islice(itertools.cycle((0.6, 0.8)), 120):
            rig.load.busy["chat"] = busy
            await rig.tick()
        await rig.loop.stop()
        num_news = len([view async for view in views if view.is_news])
    assert len(rig.said) == 4
    assert num_news == 120


async def test_start_times_are_measured_from_the_call_to_serving():
    """A start of 42 s: the lead is 42 s from then on, and the policy's floors rise as much earlier."""
    rig = Rig(options={"decide": told(2)})
    rig.target.start_s = 42.0
    await rig.tick(45)
    assert rig.view.spec.lead_s == pytest.approx(42.0)


async def test_a_removal_is_no_start_time():
    """4→2 takes 42 s of draining; the lead is still what it is before any start."""
    rig = Rig(options={"decide": told(2)})
    rig.target.ready["chat"], rig.target.drain_s = 4, 42.0
    await rig.tick(45)
    assert rig.view.spec.lead_s == UNKNOWN_LEAD_S


async def test_the_forecast_is_fed_with_the_demand_and_raises_the_floor():
    """2.5 busy is what it is told each tick; the floor of 3 that it gives is in the spec."""
    seen: list[float] = []

    class Seer:
        def __init__(self, policy: Any) -> None: ...

        def observe(self, at_s: float, busy: float) -> None:
            seen.append(busy)

        def floor(self, now: float, lead_s: float, policy: Any) -> Floor | None:
            return Floor(3, "forecast 2.9 busy")

        def status(self) -> str:
            return "on"

    rig = Rig(POLICY.replace("enabled: false", "enabled: true"), options={"new_forecaster": Seer})
    rig.target.ready["chat"] = 4
    rig.load.busy["chat"] = 2.5
    await rig.tick(2)
    assert seen == [2.5, 2.5]
    assert Floor(3, "forecast 2.9 busy") in rig.view.spec.floors
    assert rig.view.forecast == "on"


async def test_a_forecast_that_goes_on_or_off_is_said_with_its_reason():
    """Off, on, on with other numbers, off: two lines."""

    statuses = ["off: 3 of 30", "on (season): 0.3", "on (season): 0.2", "off: not better"]

    class Moody:
        def __init__(self, policy: Any) -> None: ...

        def observe(self, at_s: float, busy: float) -> None: ...

        def floor(self, now: float, lead_s: float, policy: Any) -> Floor | None: ...

        def status(self) -> str:
            return statuses.pop(0)

    rig = Rig(POLICY.replace("enabled: false", "enabled: true"), options={"new_forecaster": Moody})
    await rig.tick(4)
    said = [line for line in rig.said if "forecast" in line]
    assert said == ["chat: forecast on (season): 0.3", "chat: forecast off: not better"]


async def test_the_real_forecaster_is_used_unless_the_policy_says_no():
    """It has seen nothing yet, so it has no floor and says so."""
    rig = Rig(POLICY.replace("enabled: false", "enabled: true"))
    await rig.tick(3)
    assert rig.view.forecast == Forecaster(rig.book.policy.models["chat"].forecast).status()


async def test_a_forecaster_that_fails_is_no_floor_and_no_trouble():
    """It raises at every call: decisions go on, the view says that it is off and why."""

    class Blind:
        def __init__(self, policy: Any) -> None: ...

        def observe(self, at_s: float, busy: float) -> None:
            raise ValueError("singular")

        floor = observe

        def status(self) -> str:
            return "on"

    rig = Rig(POLICY.replace("enabled: false", "enabled: true"), options={"new_forecaster": Blind})
    rig.load.busy["chat"] = 3.5
    await rig.tick(6)
    assert len(rig.target.calls) == 1
    assert rig.view.forecast.startswith("off: ")


async def test_readers_get_every_view_and_see_which_say_something_new():
    """Three ticks and a change: the tick that decides, the end of the change, and two that are as ever."""
    rig = Rig(options={"decide": told(HOLD, 2)})
    with rig.loop.subscribe() as views:
        await rig.tick(4)
        await rig.loop.stop()
        seen = [(view.is_news, view.change is not None) async for view in views]
    # steady; 1→2 begins; it ends before the next tick; steady again; steady still
    assert seen == [(True, False), (True, True), (True, False), (True, False), (False, False)]


async def test_a_stop_takes_drains_back():
    """4→2 drains at the stop: all 4 serve on, and the readers' iterations end."""
    rig = Rig(options={"decide": told(2)})
    rig.target.ready["chat"] = 4
    rig.target.drain_s = 60.0
    await rig.tick()
    await asyncio.wait_for(rig.loop.stop(), timeout=5)
    assert rig.target.ready["chat"] == 4


async def run_for(loop: Loop, num_turns: int) -> None:
    running = asyncio.create_task(loop.run())
    await settle(num_turns)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_ticks_keep_to_their_schedule_however_long_each_takes():
    """Ticks of 0.3 s every second: at 0, 1, 2 s and so on, not at 0, 1.3, 2.6."""
    clock, at = FakeClock(), []
    rig = Rig(clock=clock, options={"decide": told(), "sleep": clock.sleep})

    async def counts(model: str):
        at.append(round(clock() - begun_s, 6))
        clock.advance(0.3)

    begun_s = clock()
    rig.target.counts = counts
    await run_for(rig.loop, 400)
    assert at[:4] == [0.0, 1.0, 2.0, 3.0]
    assert rig.loop.num_missed_ticks == 0


async def test_ticks_that_were_missed_are_left_out_counted_and_said_once_a_minute():
    """The first tick takes 3.4 s, the others 1.5: 2 left out, then every second one; no burst makes up for them."""
    clock, at = FakeClock(), []
    rig = Rig(clock=clock, options={"decide": told(), "sleep": clock.sleep})

    async def counts(model: str):
        at.append(round(clock() - begun_s, 6))
        clock.advance(1.5 if at[1:] else 3.4)

    begun_s = clock()
    rig.target.counts = counts
    await run_for(rig.loop, 200)
    assert at[:4] == [0.0, 3.4, 4.9, 6.4]
    assert rig.loop.num_missed_ticks >= 3
    assert len([line for line in rig.said if "missed" in line]) == 1


async def test_a_nudge_looks_at_once_and_leaves_the_schedule():
    """At 0, nudged at 0.4 s, then at 1 and 2 s."""
    clock, at = FakeClock(), []
    rig = Rig(clock=clock, options={"decide": told()})
    begun_s = clock()

    async def sleep(seconds: float) -> None:
        if len(at) == 1 and seconds > 0.5:
            clock.advance(0.4)
            rig.loop.nudge()
            await asyncio.Event().wait()
        clock.advance(seconds)

    async def counts(model: str):
        at.append(round(clock() - begun_s, 6))

    rig.loop._sleep = sleep
    rig.target.counts = counts
    await run_for(rig.loop, 400)
    assert at[:4] == [0.0, 0.4, 1.0, 2.0]


async def test_after_one_slow_tick_the_schedule_is_the_old_one():
    """3.4 s, then next to nothing each: at 0, 3.4, 4, 5 s."""
    clock, at = FakeClock(), []
    rig = Rig(clock=clock, options={"decide": told(), "sleep": clock.sleep})

    async def counts(model: str):
        at.append(round(clock() - begun_s, 6))
        clock.advance(0.0 if at[1:] else 3.4)

    begun_s = clock()
    rig.target.counts = counts
    await run_for(rig.loop, 400)
    assert at[:4] == [0.0, 3.4, 4.0, 5.0]
    assert rig.loop.num_missed_ticks == 2


async def test_a_loop_goes_on_after_a_tick_that_failed_as_a_whole():
    """The book itself raises once."""
    clock = FakeClock()
    rig = Rig(clock=clock, options={"decide": told(), "sleep": clock.sleep})
    faults = [RuntimeError("torn")]

    class TornBook:
        @property
        def policy(self):
            if faults:
                raise faults.pop()
            return rig.book.policy

        spec = rig.book.spec

    rig.book, torn = TornBook(), rig.book
    rig.loop = Loop(
        rig.book, rig.load, rig.target, clock=clock, say=rig.said.append, decide=told(), sleep=clock.sleep
    )
    rig.book = torn
    await run_for(rig.loop, 200)
    assert "tick failed: RuntimeError: torn" in rig.said
    assert rig.loop.views()[0].decision is not None
