"""An hour in steps of five seconds, in bounded memory: what the tide chart is drawn of."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

STEP_S = 5.0
KEPT_S = 3600.0
MAX_MODELS = 64
"""In one step; a stack with more shows the first."""

COLUMNS = (
    "arrivals",
    "failed",
    "in_flight",
    "queue",
    "wanted",
    "ready",
    "utilization",
    "ttft_p50",
    "ttft_p90",
    "ttft_p99",
    "latency_p50",
    "latency_p90",
    "latency_p99",
    "tokens",
)
"""Per model and step: arrivals, failed and tokens per second, the most in the queue, percentiles in seconds of the
calls that ended in the minute before."""
NODE_COLUMNS = ("kv_used_bytes", "kv_high_water_bytes", "kv_total_bytes")

Values = Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Step:
    """What is known of five seconds. Absent or None: not known, which is not 0."""

    number: int
    """Counted from the gateway's start, from 1."""
    end_unix_s: float
    models: Mapping[str, Values] = field(default_factory=dict)
    node: Values = field(default_factory=dict)


class History:
    """The steps of the last hour; the oldest falls out."""

    def __init__(self) -> None:
        self._steps: deque[Step] = deque(maxlen=int(KEPT_S / STEP_S))
        self._number = 0

    @property
    def last(self) -> int:
        """The number of the newest step, 0 before the first."""
        return self._number

    def add(self, end_unix_s: float, models: Mapping[str, Values], node: Values) -> None:
        self._number += 1
        kept = dict(list(models.items())[:MAX_MODELS])
        self._steps.append(Step(self._number, end_unix_s, kept, dict(node)))

    def since(self, number: int) -> dict[str, Any]:
        """Columns of the steps after `number`; one of another gateway's life (beyond ours) means all of them."""
        wanted = [step for step in self._steps if number > self._number or step.number > number]
        names = _names(wanted)
        return {
            "t": [round(step.end_unix_s, 1) for step in wanted],
            "models": {
                name: {column: [_of(step.models.get(name), column) for step in wanted] for column in COLUMNS}
                for name in names
            },
            "node": {column: [_of(step.node, column) for step in wanted] for column in NODE_COLUMNS},
        }


def _names(steps: Iterable[Step]) -> list[str]:
    return list(dict.fromkeys(name for step in steps for name in step.models))


def _of(values: Values | None, column: str) -> float | None:
    value = (values or {}).get(column)
    return None if value is None else float(f"{value:.4g}")
