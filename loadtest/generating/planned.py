"""A plan's calls as work. A child draws the schedule by itself; the parent compares that it is the same."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from loadtest.call import Call
from loadtest.generating.work import Hold
from loadtest.planning.plan import Plan, check_plan
from loadtest.planning.schedule import Schedule, plan_schedule
from loadtest.planning.workload import call_of


@dataclass(frozen=True, slots=True)
class PlannedWork:
    """`Work`'s one implementation beside those of tests."""

    plan: Plan
    schedule: Schedule

    @property
    def t_intended_s(self) -> npt.NDArray[np.float64]:
        return self.schedule.t_intended_s

    @property
    def hold(self) -> Hold | None:
        closed = self.schedule.closed
        return None if closed is None else Hold(closed.starts_s.tolist())

    @property
    def duration_s(self) -> float:
        return self.schedule.duration_s

    def call(self, index: int) -> Call:
        return call_of(self.plan, self.schedule, index)


def planned_work(argument: Any) -> PlannedWork:
    """`load_work`'s maker: of the plan's own JSON, whose paths are whole by now. Raises PlanError."""
    plan = check_plan(argument, Path())
    return PlannedWork(plan, plan_schedule(plan))
