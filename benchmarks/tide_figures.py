"""What the days of the tide bench say: utilization, waiting, instance-seconds. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.statistics import percentile
from benchmarks.tide_day import Day
from benchmarks.tide_load import Call, Sent

LATE_LIMIT_S = 0.010
"""At the 99th percentile. A sender that is later than this measures itself."""


@dataclass(frozen=True)
class Sample:
    """Instances at one moment of the day: all that are attached, and those of them that take requests."""

    at_s: float
    attached: int
    serving: int


@dataclass(frozen=True)
class Side:
    """One day under one way of scaling."""

    day: Day
    sent: Sent
    samples: Sequence[Sample]

    @property
    def utilization(self) -> float:
        """Seconds of batches on the emulated devices / instance-seconds, over the whole day."""
        batches = {(call.worker_pid, call.started_s): call.ended_s for call in self.sent.calls}
        seconds = self.day.seconds
        busy_s = sum(
            max(0.0, min(ended_s, seconds) - min(started_s, seconds))
            for (_, started_s), ended_s in batches.items()
        )
        return busy_s / self.instance_seconds()

    def instance_seconds(self, counts: Callable[[float], bool] = lambda _: True) -> float:
        """Of every instance that is attached, those that drain or stop included, at the moments that count."""
        total = 0.0
        for sample, following in zip(self.samples, self.samples[1:], strict=False):
            if counts(sample.at_s) and 0 <= sample.at_s < self.day.seconds:
                total += sample.attached * (min(following.at_s, self.day.seconds) - sample.at_s)
        return total

    @property
    def most_instances(self) -> int:
        return max(sample.attached for sample in self.samples)

    def p99_wait_s(self, counts: Callable[[float], bool] = lambda _: True) -> float:
        return percentile([call.waited_s for call in self.sent.calls if counts(call.due_s)], 99)

    @property
    def late_p99_s(self) -> float:
        return percentile(self.sent.late_s, 99)

    @property
    def mean_rows(self) -> float:
        """Requests per batch."""
        batches = {(call.worker_pid, call.started_s) for call in self.sent.calls}
        return len(self.sent.calls) / len(batches)

    def invalid_because(self) -> str | None:
        """Why its waiting times say nothing about the server."""
        if self.late_p99_s > LATE_LIMIT_S:
            return (
                f"INVALID: the sender itself was late, {self.late_p99_s * 1000:.1f} ms at the 99th percentile; "
                f"at most {LATE_LIMIT_S * 1000:.0f} ms say something of the server"
            )
        return None


def waiting_at(calls: Sequence[Call], times_s: Sequence[float]) -> list[int]:
    """How many requests were due and not yet on a device at each time."""
    changes = sorted([(call.due_s, 1) for call in calls] + [(call.started_s, -1) for call in calls])
    counts, position, waiting = [], 0, 0
    for at_s in times_s:
        while position < len(changes) and changes[position][0] <= at_s:
            waiting += changes[position][1]
            position += 1
        counts.append(waiting)
    return counts
