"""How many warm workers to keep, and when to start the next one. Decides; `broker` acts. Time comes in as `now`.

A worker is started at once for an instance that waits for one. Beyond that, spares are replenished in the
background one at a time, and not in the first moments after an attach: the warm-up forward of the next spare would
take the CPU from the first token of the instance that has just joined.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from python_backend.node.instances import InstanceId, WorkerId

REPLENISH_DELAY_S = 0.3
"""Quiet time after an attach: a stub's start plus a first token on an idle machine."""
FIRST_BACKOFF_S = 0.5
MAX_BACKOFF_S = 30.0
MAX_FAILURES_IN_A_ROW = 3
"""From here on a first attach is refused with the next failure instead of waiting for ever."""


class WorkerState(StrEnum):
    WARMING = "warming"
    SPARE = "spare"
    ATTACHED = "attached"
    STOPPING = "stopping"


@dataclass
class Worker:
    id: WorkerId
    model: str
    state: WorkerState = WorkerState.WARMING
    pid: int = 0
    """0: the fork server has not said yet."""
    instance: InstanceId | None = None
    slot_to_give_back: int | None = None
    """Slot of an instance that went: free for others only when this worker can no longer write to it."""


@dataclass(frozen=True)
class Demand:
    """What one model has and lacks now."""

    model: str
    num_spares: int
    num_warming: int
    num_waiting: int
    """Instances without a worker."""


@dataclass(frozen=True)
class SpawnPlan:
    spawn: tuple[str, ...]
    """Models to start a worker for now, one entry a worker."""
    retry_at: float | None
    """When to plan again although nothing happens; None: no need."""


@dataclass
class _Keep:
    target: int
    prepared: int = 0
    """Asked for by PrepareSpares, until there."""
    failures: int = 0
    not_before: float = 0.0

    @property
    def wanted(self) -> int:
        return max(self.target, self.prepared)


class SparePlanner:
    """`targets`: warm workers to keep per model. At most `max_warming` workers warm up at the same time."""

    def __init__(
        self, targets: Mapping[str, int], max_warming: int, replenish_delay_s: float = REPLENISH_DELAY_S
    ) -> None:
        self._keep = {model: _Keep(target) for model, target in targets.items()}
        self._max_warming = max(1, max_warming)
        self._replenish_delay_s = replenish_delay_s
        self._quiet_until = 0.0

    def keep(self, model: str, target: int) -> None:
        """One more model; its failures are forgotten if it was here before."""
        self._keep[model] = _Keep(target)

    def forget(self, model: str) -> None:
        del self._keep[model]

    def target(self, model: str) -> int:
        return self._keep[model].target

    def failures(self, model: str) -> int:
        """Workers in a row that died before they were warm."""
        return self._keep[model].failures

    def keeps_dying(self, model: str) -> bool:
        return self._keep[model].failures >= MAX_FAILURES_IN_A_ROW

    def prepare(self, model: str, num_spares: int) -> None:
        """Want at least so many, once; when they stand by, the target alone counts again."""
        self._keep[model].prepared = max(self._keep[model].prepared, num_spares)

    def attached(self, now: float) -> None:
        self._quiet_until = now + self._replenish_delay_s

    def warmed(self, model: str, num_spares: int) -> None:
        keep = self._keep[model]
        keep.failures, keep.not_before = 0, 0.0
        if num_spares >= keep.prepared:
            keep.prepared = 0

    def died_warming(self, model: str, now: float) -> None:
        keep = self._keep[model]
        keep.not_before = now + min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2**keep.failures)
        keep.failures += 1

    def plan(self, demands: Sequence[Demand], now: float) -> SpawnPlan:
        room = self._max_warming - sum(demand.num_warming for demand in demands)
        spawn: list[str] = []
        retries: list[float] = []
        for demand in demands:
            lacking = demand.num_waiting - demand.num_warming
            if lacking > 0 and self._keep[demand.model].not_before > now:
                retries.append(self._keep[demand.model].not_before)
            elif lacking > 0:
                spawn += [demand.model] * min(lacking, room - len(spawn))
        if not spawn and room == self._max_warming:
            self._plan_background(demands, now, spawn, retries)
        return SpawnPlan(tuple(spawn), min(retries, default=None))

    def _plan_background(
        self, demands: Sequence[Demand], now: float, spawn: list[str], retries: list[float]
    ) -> None:
        """At most one worker, for the model that has the smallest share of its spares."""
        short = [demand for demand in demands if demand.num_spares < self._keep[demand.model].wanted]
        for demand in sorted(short, key=lambda demand: demand.num_spares / self._keep[demand.model].wanted):
            due = self._due(demand)
            if due <= now:
                spawn.append(demand.model)
                return
            retries.append(due)

    def _due(self, demand: Demand) -> float:
        keep = self._keep[demand.model]
        is_asked_for = demand.num_spares < keep.prepared
        return keep.not_before if is_asked_for else max(keep.not_before, self._quiet_until)
