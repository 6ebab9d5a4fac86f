"""What the scaler tells Prometheus of its models."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import Metric

from scaler.deciding.decision import Cause, Decision, Direction, Spec, State
from scaler.deciding.observation import Counts, Observation, Reading, Signals
from scaler.deciding.policy import ModelPolicy
from scaler.looping.views import Change, ModelView
from scaler.serving.metrics import Tally, collect

SPEC = Spec("chat", ModelPolicy(max_instances=4), lead_s=2.0)


def view(**given: object) -> ModelView:
    values: dict[str, object] = {
        "observation": Observation(
            Counts(ready=2, starting=1), Signals(utilization=Reading.of(0.5), queue=Reading.of(None))
        ),
        "spec": SPEC,
        "decision": decision(Direction.HOLD, 3),
    }
    return ModelView("chat", 10.0, **{**values, **given})  # type: ignore[arg-type]


def decision(direction: Direction, wanted: int) -> Decision:
    return Decision("chat", 10.0, 3, wanted, direction, Cause.PRESSURE, "", False, State.adopted(0.0))


def value(metrics: Iterable[Metric], name: str, **labels: str) -> float | None:
    found = [
        sample.value
        for metric in metrics
        for sample in metric.samples
        if sample.name == name and {**sample.labels, **labels} == sample.labels
    ]
    return found[0] if found else None


def test_instances_and_what_is_wanted_stand_side_by_side():
    metrics = list(collect([view()], 0.4, 0))
    assert value(metrics, "tidegate_scaler_instances", model="chat", state="ready") == 2
    assert value(metrics, "tidegate_scaler_instances", model="chat", state="starting") == 1
    assert value(metrics, "tidegate_scaler_wanted_instances", model="chat") == 3
    assert value(metrics, "tidegate_scaler_max_instances", model="chat") == 4
    assert value(metrics, "tidegate_scaler_tick_age_seconds") == 0.4


def test_a_figure_that_is_missing_is_absent_and_not_zero():
    """The queue could not be measured: a 0 would say that nobody waits. Nor is the count, when nobody can say."""
    metrics = list(collect([view()], None, 0))
    assert value(metrics, "tidegate_scaler_utilization_ratio", model="chat") == 0.5
    assert value(metrics, "tidegate_scaler_queued_requests", model="chat") is None
    assert value(metrics, "tidegate_scaler_tick_age_seconds") is None
    blind = list(collect([view(observation=Observation(counts=None))], None, 0))
    assert value(blind, "tidegate_scaler_instances", model="chat", state="ready") is None


def test_a_change_is_counted_when_it_begins_and_only_once():
    """The ticks that follow see the same change run."""
    tally, before = Tally(), view()
    begun = view(decision=decision(Direction.OUT, 4), change=Change(3, 4, 10.0, "queue"))
    tally.note(before, begun)
    tally.note(begun, view(change=begun.change))
    counted = value(tally.collect(), "tidegate_scaler_decisions_total", direction="out", cause="pressure")
    assert counted == 1


def test_a_decision_that_could_not_be_acted_on_is_not_counted():
    """The last change failed a moment ago: each tick decides the same, and nothing happens."""
    tally = Tally()
    tally.note(view(), view(decision=decision(Direction.OUT, 4)))
    assert value(tally.collect(), "tidegate_scaler_decisions_total") is None


def test_a_model_that_is_new_has_its_counters_at_zero():
    """Else its first start, or failure, would be no increase to Prometheus."""
    tally = Tally()
    tally.note(None, view())
    assert value(tally.collect(), "tidegate_scaler_instance_start_seconds_count", model="chat") == 0
    assert value(tally.collect(), "tidegate_scaler_failures_total", model="chat") == 0


def test_a_failure_that_lasts_is_one_failure():
    tally = Tally()
    failed = view(last_error="3→4 failed", last_error_s=10.0)
    tally.note(view(), failed)
    tally.note(failed, view(last_error="3→4 failed", last_error_s=10.0))
    assert value(tally.collect(), "tidegate_scaler_failures_total", model="chat") == 1
    assert value(collect([failed], None, 0), "tidegate_scaler_failing", model="chat") == 1
