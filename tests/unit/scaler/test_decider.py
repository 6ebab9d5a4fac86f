"""Decisions as timelines: `Tide` feeds one observation a second and applies what is decided."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from scaler.deciding.decider import decide
from scaler.deciding.decision import Cause, Decision, Direction, Floor, Override, Spec, State
from scaler.deciding.observation import MISSING, Counts, Observation, Quality, Reading, Signals
from scaler.deciding.policy import ModelPolicy, ScaleIn, ScaleOut

QUICK = ScaleOut(utilization_hold_s=3)


@dataclass
class Tide:
    """A model with a demand in busy instances; starts take `startup_s`."""

    policy: ModelPolicy = field(default_factory=ModelPolicy)
    ready: int = 1
    startup_s: float = 0.0
    tick_s: float = 1.0
    now: float = 0.0
    state: State = field(default_factory=lambda: State.adopted(-1e6))
    starting: list[float] = field(default_factory=list)
    """When each of them will be ready."""
    changes: list[Decision] = field(default_factory=list)
    floors: tuple[Floor, ...] = ()
    override: Override | None = None
    is_paused: bool = False

    @property
    def counts(self) -> Counts:
        return Counts(ready=self.ready, starting=len(self.starting))

    def step(self, signals: Signals) -> Decision:
        """One tick on."""
        self.now += self.tick_s
        self.ready += sum(at_s <= self.now for at_s in self.starting)
        self.starting = [at_s for at_s in self.starting if at_s > self.now]
        spec = Spec("chat", self.policy, self.startup_s, self.floors, self.override, self.is_paused)
        decision = decide(spec, self.state, Observation(self.counts, signals), self.now)
        self.state = decision.state
        if decision.direction is Direction.OUT:
            num = decision.wanted - decision.before
            self.starting += [self.now + self.startup_s] * num
        elif decision.direction is Direction.IN:
            self.ready -= decision.before - decision.wanted
        if decision.direction is not Direction.HOLD:
            self.changes.append(decision)
        return decision

    def run(self, ticks: int, demand: float, queue: float = 0.0) -> Decision:
        for _ in range(ticks):
            decision = self.step(load(demand, self.ready, queue))
        return decision


def load(demand: float, ready: int, queue: float = 0.0) -> Signals:
    """`demand` busy instances on `ready` ones; more than there are shows as a full utilisation."""
    return Signals(
        utilization=Reading.of(min(1.0, demand / ready) if ready else None), queue=Reading.of(queue)
    )


def test_it_scales_out_once_the_threshold_has_held() -> None:
    """Util 0.91 of 2: nothing for 30 s, then 3, as 1.82 busy need at 0.65."""
    tide = Tide(ready=2)
    assert [tide.run(1, 1.82).cause for _ in range(30)] == [Cause.HOLDING] * 30
    decision = tide.run(1, 1.82)
    assert (decision.before, decision.wanted, decision.cause) == (2, 3, Cause.PRESSURE)
    assert decision.reason == "chat 2→3: util 0.91 ≥ 0.7 for 30 s, util 0.91, queue 0; max 8"


def test_a_dip_starts_the_hold_again() -> None:
    """Twenty seconds over, one under, twenty over: no change."""
    tide = Tide(ready=2)
    tide.run(20, 1.8)
    tide.run(1, 1.0)
    tide.run(20, 1.8)
    assert tide.changes == []


def test_requests_that_wait_are_answered_long_before_instances_that_are_only_full() -> None:
    """Full for 10 s, then a queue: 3 s after it began, not 20 s later."""
    tide = Tide(ready=2)
    tide.run(10, 1.8)
    tide.run(4, 2.0, queue=30)
    assert [round(change.at_s) for change in tide.changes] == [14]


def test_a_queue_alone_scales_out() -> None:
    """Util 0.5, queue 37: twice as many at most, as nothing says what a request costs."""
    tide = Tide(ready=2)
    tide.run(4, 1.0, queue=37)
    assert [(c.before, c.wanted) for c in tide.changes] == [(2, 4)]
    assert "queue 37 ≥ 20 for 3 s" in tide.changes[0].reason


def test_a_queue_of_known_cost_asks_for_what_works_it_off_in_a_cooldown() -> None:
    """1 busy, 120 requests of 0.5 s: one more busy for 60 s; 2 / 0.65 is 4."""
    tide = Tide(ready=2)
    signals = replace(load(1.0, 2, queue=120), busy_s_per_request=Reading.of(0.5))
    for _ in range(4):
        tide.step(signals)
    assert tide.changes[0].wanted == 4


def test_a_queue_threshold_may_count_per_instance() -> None:
    """30 in front of 2 is 15 each."""
    tide = Tide(ModelPolicy(scale_out=ScaleOut(queue=20, queue_per_instance=True)), ready=2)
    tide.run(10, 1.0, queue=30)
    assert tide.changes == []
    tide.run(4, 1.0, queue=41)
    assert tide.changes[0].direction is Direction.OUT


@pytest.mark.parametrize(
    ("out", "signals"),
    [
        (ScaleOut(queue_time_s=2), Signals(queue_time_s=Reading.of(2.5))),
        (ScaleOut(concurrency=8), Signals(concurrency=Reading.of(17))),
        (ScaleOut(kv_occupancy=0.9), Signals(kv_occupancy=Reading.of(0.95))),
    ],
)
def test_it_also_scales_on_queue_time_concurrency_and_kv(out: ScaleOut, signals: Signals) -> None:
    """One reading that is known is enough to go out, whatever is missing."""
    tide = Tide(ModelPolicy(scale_out=out), ready=2)
    for _ in range(4):
        tide.step(signals)
    assert tide.changes[0].wanted == 3


def test_the_cooldown_parts_two_scale_outs() -> None:
    """More load right after a change waits out the 60 s."""
    tide = Tide(ModelPolicy(scale_out=QUICK), ready=1)
    tide.run(4, 0.9)
    assert tide.run(50, 8).cause is Cause.COOLDOWN
    tide.run(20, 8)
    assert [round(c.at_s) for c in tide.changes] == [4, 64]


def test_steps_of_one_go_one_at_a_time() -> None:
    """A demand of 6 with step: one adds a single instance per cooldown."""
    tide = Tide(ModelPolicy(step="one", scale_out=QUICK), ready=2)
    tide.run(70, 6)
    assert [(c.before, c.wanted) for c in tide.changes] == [(2, 3), (3, 4)]


def test_it_never_passes_the_maximum_and_says_when_the_queue_still_grows() -> None:
    """At 4 of 4 with a queue that grows the model is saturated, until nothing presses any more."""
    tide = Tide(ModelPolicy(max_instances=4), ready=4)
    for queue in range(0, 100, 5):
        decision = tide.run(1, 4, queue)
    assert (decision.cause, decision.is_saturated) == (Cause.LIMIT, True)
    assert tide.run(1, 4, queue=60).is_saturated, "a shorter queue alone does not end it"
    assert not tide.run(1, 1).is_saturated


def test_a_long_queue_that_shrinks_is_no_saturation() -> None:
    """The maximum bears it."""
    tide = Tide(ModelPolicy(max_instances=4), ready=4)
    for queue in range(200, 100, -5):
        assert not tide.run(1, 4, queue).is_saturated


def test_it_scales_in_after_a_quiet_cooldown() -> None:
    """0.5 busy of 4 for 120 s: 1 is enough."""
    tide = Tide(ready=4, state=State.adopted(-1000))
    tide.run(120, 0.5)
    assert tide.changes == []
    tide.run(2, 0.5)
    assert [(c.before, c.wanted, c.cause) for c in tide.changes] == [(4, 1, Cause.QUIET)]


def test_one_busy_second_starts_the_quiet_again() -> None:
    """aibrix took the lowest of the window where the highest belongs."""
    tide = Tide(ModelPolicy(scale_in=ScaleIn(survivors_utilization=None)), ready=4)
    tide.run(119, 0.5)
    tide.run(1, 2.5)
    tide.run(119, 0.5)
    assert tide.changes == []
    tide.run(3, 0.5)
    assert len(tide.changes) == 1


def test_a_surplus_goes_when_fewer_would_have_borne_the_whole_window() -> None:
    """2.2 busy of 6 is 0.37, never quiet; 4 bear it at 0.55."""
    tide = Tide(ready=6)
    tide.run(300, 2.2)
    assert tide.changes == []
    tide.run(2, 2.2)
    assert [(c.before, c.wanted, c.cause) for c in tide.changes] == [(6, 4, Cause.SURPLUS)]


def test_the_highest_demand_of_the_window_counts() -> None:
    """A peak of 3.5 four minutes ago keeps all 6."""
    tide = Tide(ready=6)
    tide.run(5, 3.5)
    tide.run(294, 2.0)
    assert tide.changes == []


def test_what_was_just_added_stays_a_window() -> None:
    """A burst that ended at once is no reason to go straight back."""
    tide = Tide(ModelPolicy(cooldown_in_s=120, scale_out=QUICK), ready=2)
    tide.run(4, 2.0)
    tide.run(115, 0.2)
    assert [c.direction for c in tide.changes] == [Direction.OUT]
    tide.run(10, 0.2)
    assert [c.direction for c in tide.changes] == [Direction.OUT, Direction.IN]


@pytest.mark.parametrize("percent", range(30, 95, 5))
def test_a_constant_load_settles_with_at_most_one_change(percent: int) -> None:
    """dynamo#9294, ray#18925: the survivors inherited N/(N-1) of the load, and back it went. N = 2 to 10."""
    for num in range(2, 11):
        tide = Tide(ModelPolicy(max_instances=20), ready=num, tick_s=5)
        tide.run(250, num * percent / 100)
        assert len(tide.changes) <= 1, [c.reason for c in tide.changes]


def test_a_slow_start_is_counted_and_not_answered_again() -> None:
    """aibrix#2670: 300 s to start, constant overload of 5 busy on 2, queue growing: the count rises once."""
    tide = Tide(ModelPolicy(max_instances=64), ready=2, startup_s=300)
    for second in range(299):
        signals = replace(
            load(5, 2, queue=20 + second),
            arrivals_per_s=Reading.of(10),
            busy_s_per_request=Reading.of(0.5),
        )
        tide.step(signals)
    assert len(tide.changes) == 1
    assert tide.changes[0].wanted >= 8


def test_a_slow_start_is_counted_even_when_nothing_tells_the_demand() -> None:
    """Utilisation is full and the queue grows, no more is known: 2 become 4, and 4 they stay till those serve."""
    tide = Tide(ModelPolicy(max_instances=64), ready=2, startup_s=300)
    for second in range(299):
        tide.step(load(5, 2, queue=20 + second))
    assert [(c.before, c.wanted) for c in tide.changes] == [(2, 4)]


def test_missing_figures_hold_the_count_and_keep_the_bounds() -> None:
    """Ten minutes without a figure: 4 stay 4, and 1 becomes the minimum of 3."""
    four = Tide(ready=4)
    for _ in range(600):
        assert four.step(Signals()).cause is Cause.UNKNOWN
    assert four.changes == []
    one = Tide(ModelPolicy(min_instances=3), ready=1)
    assert one.step(Signals()).wanted == 3


def test_a_stale_figure_is_no_figure() -> None:
    """llm-d#368: a dead pod's last utilisation of 0.95 caused scale-outs for ever."""
    old = Reading.of(0.95, age_s=30, stale_after_s=10)
    tide = Tide(ready=2)
    for _ in range(600):
        tide.step(Signals(utilization=old, queue=MISSING))
    assert tide.changes == []


def test_nothing_to_measure_is_no_load() -> None:
    """dynamo#3131: NaN at zero traffic blocked scale-in for ever; it is idle, and idle scales in."""
    tide = Tide(ready=4)
    idle = Reading.of(float("nan"))
    assert idle.quality is Quality.IDLE
    for _ in range(302):
        tide.step(Signals(utilization=idle, queue=Reading.of(0)))
    assert tide.ready == 1


def test_one_lost_answer_does_not_break_the_quiet() -> None:
    """A single missing scrape in 300 s only delays the change by a tick."""
    tide = Tide(ready=4)
    tide.run(100, 0.5)
    tide.step(Signals())
    tide.run(202, 0.5)
    assert len(tide.changes) == 1


def test_a_silence_breaks_the_window() -> None:
    """30 s without figures: what was before them is forgotten."""
    tide = Tide(ready=4)
    tide.run(110, 0.5)
    for _ in range(30):
        tide.step(Signals())
    tide.run(118, 0.5)
    assert tide.changes == []


def test_an_unknown_count_changes_nothing() -> None:
    """Triton does not answer."""
    decision = decide(
        Spec("chat", ModelPolicy(), 1), State.adopted(0), Observation(None, load(5, 2, 100)), 1000
    )
    assert (decision.direction, decision.cause) == (Direction.HOLD, Cause.UNKNOWN)


def test_a_restarted_scaler_does_not_scale_in_for_a_window() -> None:
    """knative#4795: it forgot, and dropped to 1."""
    tide = Tide(ready=6, state=State.adopted(0))
    tide.run(299, 0.1)
    assert tide.changes == []
    tide.run(5, 0.1)
    assert tide.ready == 1


def test_a_floor_lifts_at_once_and_holds() -> None:
    """A reservation of 5 needs no threshold, hold or cooldown, and no scale-in goes below it."""
    tide = Tide(ready=2, floors=(Floor(5, "reservation launch: min 5"),))
    decision = tide.run(1, 0.1)
    assert (decision.wanted, decision.cause) == (5, Cause.FLOOR)
    assert "reservation launch" in decision.reason
    tide.run(600, 0.1)
    assert tide.ready == 5


def test_a_floor_above_the_maximum_is_cut_to_it() -> None:
    """A forecast of 30 with a maximum of 8."""
    assert Tide(ready=2, floors=(Floor(30, "forecast"),)).run(1, 0.1).wanted == 8


def test_no_more_is_asked_for_than_there_is_room() -> None:
    """Demand for 8, room for 1 more here."""
    spec = Spec("chat", ModelPolicy(), 1)
    observation = Observation(Counts(ready=2, room=1), load(5, 2))
    state = replace(State.adopted(0), busy_since_s=0)
    decision = decide(spec, state, observation, 1000)
    assert decision.wanted == 3
    assert "room for 1 more here" in decision.reason


def test_an_override_sets_exactly_until_it_ends() -> None:
    """6 by hand in spite of a low load; afterwards the rules go on."""
    tide = Tide(ready=2, override=Override(6, until_unix_s=100, reason="launch night"))
    assert tide.run(1, 0.1).wanted == 6
    tide.run(90, 0.1)
    assert tide.ready == 6
    tide.run(600, 0.1)
    assert tide.ready == 1


def test_a_pause_changes_nothing_at_all() -> None:
    """Not even up to a floor: someone is working on it."""
    tide = Tide(ready=1, is_paused=True, floors=(Floor(4, "reservation"),))
    tide.run(60, 1, queue=50)
    assert tide.changes == []


def test_more_than_the_maximum_is_cut_at_once() -> None:
    """The policy's maximum was lowered to 3."""
    assert Tide(ModelPolicy(max_instances=3), ready=5).run(1, 5).wanted == 3


def test_it_goes_to_zero_and_wakes_for_the_first_request() -> None:
    """20 minutes without a request: 0; a request that waits: 1."""
    tide = Tide(ModelPolicy(min_instances=0, zero_after_s=1200), ready=1)
    tide.run(1200, 0.0)
    assert tide.ready == 1
    tide.run(2, 0.0)
    assert (tide.ready, tide.changes[-1].cause) == (0, Cause.ZERO)
    assert tide.step(Signals()).cause is Cause.ZERO, "nothing to measure of nothing"
    assert tide.step(Signals(wakes=2)).wanted == 1


def test_a_model_with_a_minimum_never_goes_to_zero() -> None:
    """min_instances 1, an hour of nothing."""
    tide = Tide(ready=1)
    tide.run(3600, 0.0)
    assert tide.changes == []


def test_more_load_never_asks_for_fewer() -> None:
    """ray#46148: a rounding always went down. Monotone in the demand, at every size."""
    for ready in range(1, 12):
        state = replace(State.adopted(-1e6), over_since_s=-100.0, busy_since_s=-100.0)
        wanted = [
            decide(
                Spec("chat", ModelPolicy(max_instances=64), 1),
                state,
                Observation(
                    Counts(ready),
                    replace(
                        load(tenths / 10, ready),
                        arrivals_per_s=Reading.of(tenths / 10),
                        busy_s_per_request=Reading.of(1.0),
                    ),
                ),
                0.0,
            ).wanted
            for tenths in range(200)
        ]
        assert wanted == sorted(wanted)
