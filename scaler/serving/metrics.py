"""The scaler's Prometheus figures: of each model what was measured and decided, and the changes counted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field

from prometheus_client import Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric

from contracts.buckets import START_BUCKETS_S
from scaler.deciding.decision import Direction
from scaler.looping.views import ModelView


@dataclass
class Tally:
    """What happened since the process began. The loop tells it; each counter has its own lock."""

    decisions: Counter = field(
        default_factory=lambda: Counter(
            "tidegate_scaler_decisions",
            "Changes of the number of instances that were decided, and why.",
            ("model", "direction", "cause"),
            registry=None,
        )
    )
    failures: Counter = field(
        default_factory=lambda: Counter(
            "tidegate_scaler_failures", "Changes and ticks that failed.", ("model",), registry=None
        )
    )
    start_time: Histogram = field(
        default_factory=lambda: Histogram(
            "tidegate_scaler_instance_start_seconds",
            "From the decision to the instance serving.",
            ("model",),
            buckets=START_BUCKETS_S,
            registry=None,
        )
    )

    def note(self, before: ModelView | None, view: ModelView) -> None:
        """`before`: the model's view until now. A decision that could not be acted on has changed nothing."""
        if before is None:
            # At 0 from the beginning: to Prometheus a counter that comes into being with 1 has not risen.
            self.failures.labels(view.model)
            self.start_time.labels(view.model)
        has_begun = view.change is not None and (before is None or view.change is not before.change)
        if has_begun and view.decision is not None and view.decision.direction is not Direction.HOLD:
            self.decisions.labels(view.model, view.decision.direction, view.decision.cause).inc()
        if view.last_error and (before is None or view.last_error_s != before.last_error_s):
            self.failures.labels(view.model).inc()

    def started(self, model: str, seconds: float) -> None:
        self.start_time.labels(model).observe(seconds)

    async def follow(self, views: AsyncIterator[ModelView]) -> None:
        """Until they end."""
        before: dict[str, ModelView] = {}
        async for view in views:
            self.note(before.get(view.model), view)
            before[view.model] = view

    def collect(self) -> Iterable[Metric]:
        for each in (self.decisions, self.failures, self.start_time):
            yield from each.collect()


def collect(
    views: Iterable[ModelView], last_tick_age_s: float | None, num_missed_ticks: int
) -> Iterable[Metric]:
    """Gauges of the moment. A figure that is not known is absent, never 0."""
    yield from _of_loop(last_tick_age_s, num_missed_ticks)
    known = list(views)
    instances = _gauge("tidegate_scaler_instances", "Instances by state: ready, starting, draining.", "state")
    for view in known:
        if (counts := view.observation.counts) is not None:
            instances.add_metric([view.model, "ready"], counts.ready)
            instances.add_metric([view.model, "starting"], counts.starting)
            instances.add_metric([view.model, "draining"], counts.draining)
    yield instances
    for name, text, value in _FIGURES:
        family = _gauge(f"tidegate_scaler_{name}", text)
        for view in known:
            if (number := value(view)) is not None:
                family.add_metric([view.model], number)
        yield family


def _of_loop(last_tick_age_s: float | None, num_missed_ticks: int) -> Iterable[Metric]:
    if last_tick_age_s is not None:
        yield GaugeMetricFamily(
            "tidegate_scaler_tick_age_seconds", "Since the last tick ended.", value=last_tick_age_s
        )
    yield GaugeMetricFamily(
        "tidegate_scaler_missed_ticks",
        "Ticks that were left out since the process began: the machine was overloaded, or the process stopped.",
        value=num_missed_ticks,
    )


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=["model", *labels])


def _wanted(view: ModelView) -> float | None:
    return view.wanted


def _signal(name: str) -> Callable[[ModelView], float | None]:
    def value(view: ModelView) -> float | None:
        reading = getattr(view.observation.signals, name)
        return reading.value if reading.is_usable else None

    return value


def _of_policy(name: str) -> Callable[[ModelView], float | None]:
    return lambda view: float(getattr(view.spec.policy, name)) if view.spec is not None else None


_FIGURES: tuple[tuple[str, str, Callable[[ModelView], float | None]], ...] = (
    ("wanted_instances", "Ready and starting instances together, as last decided.", _wanted),
    ("min_instances", "The policy's minimum.", _of_policy("min_instances")),
    ("max_instances", "The policy's maximum.", _of_policy("max_instances")),
    (
        "floor_instances",
        "The highest of the lower bounds: reservations and the forecast; absent without any.",
        lambda view: max((f.num_instances for f in view.spec.floors), default=None) if view.spec else None,
    ),
    ("utilization_ratio", "Busy share of the ready instances, 0 to 1.", _signal("utilization")),
    ("queued_requests", "Requests that wait, in Triton, the bridges and the engines.", _signal("queue")),
    ("queue_time_seconds", "Mean time in the queue of the requests that left it.", _signal("queue_time_s")),
    ("concurrent_requests", "Requests waiting or running, mean over the window.", _signal("concurrency")),
    (
        "kv_occupancy_ratio",
        "High-water mark of the KV cache, of what the model may have.",
        _signal("kv_occupancy"),
    ),
    ("arrivals_per_second", "Requests that came.", _signal("arrivals_per_s")),
    (
        "saturated",
        "1: the maximum is reached and the queue still grows.",
        lambda view: float(view.decision.is_saturated) if view.decision else None,
    ),
    ("paused", "1: an operator paused it.", lambda view: float(view.spec.is_paused) if view.spec else None),
    (
        "lead_time_seconds",
        "From a decision to the instance serving, as decisions count on it.",
        lambda view: view.spec.lead_s if view.spec else None,
    ),
    (
        "failing",
        "1: the last change or tick failed, and none has succeeded since.",
        lambda view: float(bool(view.last_error)),
    ),
)
