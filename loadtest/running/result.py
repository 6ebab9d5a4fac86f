"""A run that has ended: read from its folder, measured, judged, and reported into the same folder.

Every figure comes from the folder's files alone, so a report can be made again, and a verdict can't be edited in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtest.curve import Curve
from loadtest.judging.checks import RunFacts
from loadtest.judging.expression import goals_of, parse_all
from loadtest.judging.judge import judge
from loadtest.measuring.asked import asked_load
from loadtest.measuring.metrics import Measured, measure
from loadtest.measuring.steady import Window, find_window
from loadtest.planning.plan import Plan
from loadtest.planning.schedule import plan_schedule
from loadtest.records import Requests
from loadtest.reporting.files import write_report
from loadtest.reporting.result import ScalingChange
from loadtest.running.folder import Facts, read_raw
from loadtest.running.forecast import names_of
from loadtest.verdict import Judgement, Row, Verdict


@dataclass(frozen=True, slots=True)
class RunResult:
    """Everything that a report shows (`loadtest.reporting.result.Result`)."""

    folder: Path
    plan: Plan
    requests: Requests
    curve: Curve
    facts: Facts
    window: Window
    measured: Measured | None
    """None: it could not be measured, and the judgement says why."""
    judgement: Judgement

    @property
    def name(self) -> str:
        return self.facts.name

    @property
    def started_unix_s(self) -> float:
        return self.facts.started_unix_s

    @property
    def ended_s(self) -> float:
        return self.facts.ended_s

    @property
    def machine(self) -> Mapping[str, str]:
        return self.facts.machine

    @property
    def problems(self) -> Sequence[str]:
        return self.facts.problems

    @property
    def changes(self) -> Sequence[ScalingChange]:
        return self.facts.changes


def conclude(folder: Path, *, writes: bool = True) -> RunResult:
    """Measure and judge what lies in the folder. `writes`: the report, too. Raises FolderUnreadable, OSError."""
    plan, requests, curve, facts = read_raw(folder)
    try:
        window, measured, judgement = _judged(plan, requests, curve, facts)
    except Exception as exc:  # whatever can't be measured is INVALID, and never a traceback without a verdict
        why = f"measuring and judging failed: {type(exc).__name__}: {exc}"
        window, measured = Window(0.0, 0.0, False, why, ()), None
        judgement = Judgement(tuple(_invalid(each) for each in (*facts.problems, why)))
    result = RunResult(folder, plan, requests, curve, facts, window, measured, judgement)
    if writes:
        write_report(folder, result)
    return result


def _judged(plan: Plan, requests: Requests, curve: Curve, facts: Facts) -> tuple[Window, Measured, Judgement]:
    expressions = parse_all(plan.slo, names_of(plan))
    schedule = plan_schedule(plan)
    window = find_window(requests, curve, asked_load(plan))
    measured = measure(requests, curve, window, goals_of(expressions))
    drawn_s = None if schedule.closed is not None else schedule.t_intended_s
    return window, measured, judge(expressions, measured, RunFacts(drawn_s, problems=tuple(facts.problems)))


def _invalid(why: str) -> Row:
    return Row("the run", None, None, "", None, None, 0, None, Verdict.INVALID, why)
