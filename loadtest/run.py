"""One whole run: check, watch, send, drain, keep what was measured, judge it, report.

Whatever goes wrong on the way is a problem in words, and a run with a problem is INVALID: it never passes, and what
had been measured by then is kept. The report is made of the folder's files alone, so `conclude` can make it again.
"""

from __future__ import annotations

import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from contracts.stack import Stack
from loadtest.curve import Curve
from loadtest.generating.collecting import Progress
from loadtest.generating.generator import Generated, generate
from loadtest.planning.plan import Plan, PlanError
from loadtest.planning.schedule import Schedule, plan_schedule
from loadtest.records import Request, Requests
from loadtest.reporting.result import ScalingChange
from loadtest.running import folder as folders
from loadtest.running.errors import RunError
from loadtest.running.folder import Facts
from loadtest.running.machine import describe_machine, describe_stack, fingerprint
from loadtest.running.preflight import problems_of
from loadtest.running.result import RunResult, conclude
from loadtest.running.target import resolve_target
from loadtest.watching.gaps import source_notes, source_problems
from loadtest.watching.scaler import ScalerSource
from loadtest.watching.sources import sources_for
from loadtest.watching.watch import Watch


class Observer(Protocol):
    """Whoever shows how far a run is. Called in the run's own thread: be quick."""

    def stage(self, text: str) -> None: ...

    def began(self, watch: Watch, duration_s: float) -> None:
        """The first request is due in a moment."""

    def progress(self, progress: Progress) -> None: ...

    def request(self, request: Request) -> None: ...


class Quiet:
    """An Observer that shows nothing."""

    def stage(self, text: str) -> None:
        pass

    def began(self, watch: Watch, duration_s: float) -> None:
        pass

    def progress(self, progress: Progress) -> None:
        pass

    def request(self, request: Request) -> None:
        pass


def run_plan(
    plan: Plan,
    folder: Path,
    *,
    plan_text: str,
    observer: Observer | None = None,
    stop: threading.Event | None = None,
) -> RunResult:
    """`folder` is made, and must be empty. `stop` ends the run early. Raises FolderTaken, OSError."""
    folders.create_folder(folder)
    (folder / folders.PLAN).write_text(plan_text)
    run = _Run(plan, observer or Quiet(), stop or threading.Event())
    run.perform()
    folders.write_raw(folder, run.requests, run.curve, run.facts())
    run.observer.stage("measuring and judging")
    return conclude(folder)


class _Run:
    """The acting part. After `perform`, `requests` and `curve` are what there is, `facts()` the rest."""

    def __init__(self, plan: Plan, observer: Observer, stop: threading.Event) -> None:
        self.plan = plan
        self.observer = observer
        self.requests: Requests | None = None
        self.curve: Curve | None = None
        self._stop = stop
        self._problems: list[str] = []
        self._notes: list[str] = []
        self._scaler: ScalerSource | None = None
        self._machine: dict[str, str] = {}
        self._stack: dict[str, Any] = {}
        self._generated: Generated | None = None
        self._began_unix_s = time.time()

    def perform(self) -> None:
        """Never raises for what the target, the plan's schedule or a generator does."""
        self.observer.stage("checking the target")
        try:
            self.plan, stack = resolve_target(self.plan)
            schedule = plan_schedule(self.plan)
            self._problems += problems_of(self.plan, schedule)
            self._machine, self._stack = describe_machine(), describe_stack(stack)
        except (RunError, PlanError) as exc:
            self._problems.append(str(exc))
            return
        if not self._problems:
            self._watch_and_send(stack, schedule)

    def _watch_and_send(self, stack: Stack | None, schedule: Schedule) -> None:
        memory = self.plan.memory
        sources = sources_for(self.plan.target, memory, stack.pids if stack else {})
        if stack and stack.scaler_grpc:
            self._scaler = ScalerSource(stack.scaler_grpc)
            sources.append(self._scaler)
        with Watch(sources) as watch:
            self.observer.stage(f"watching memory for {memory.baseline_s:g} s before the load")
            if self._stop.wait(memory.baseline_s):
                self._problems.append("the run was stopped by hand before the first request")
                return
            self._send(watch, schedule)
            if self._generated is not None and not self._stop.is_set():
                self.observer.stage(f"watching memory for {memory.settle_s:g} s after the last answer")
                self._stop.wait(memory.settle_s)
        if self._generated is not None:
            self.curve = watch.curve(self._generated.t0_monotonic_s)
            self._problems += source_problems(self.curve, self._generated.ended_s)
            self._notes += source_notes(self.curve)

    def _send(self, watch: Watch, schedule: Schedule) -> None:
        self.observer.began(watch, schedule.duration_s)
        try:
            self._generated = generate(
                self.plan,
                schedule,
                on_progress=self.observer.progress,
                on_request=self.observer.request,
                stop=self._stop,
            )
        except Exception as exc:  # a defect of the generator must not lose the memory curve
            self._problems.append(f"the generator broke: {type(exc).__name__}: {exc}")
            return
        self.requests = self._generated.requests
        self._problems += self._generated.problems
        if self._stop.is_set():
            self._problems.append("the run was stopped by hand")

    def facts(self) -> Facts:
        generated = self._generated
        return Facts(
            name=self.plan.name,
            started_unix_s=generated.t0_unix_s if generated else self._began_unix_s,
            ended_s=generated.ended_s if generated else 0.0,
            seed=self.plan.seed,
            machine=self._machine,
            stack=self._stack,
            fingerprint=fingerprint(self._stack),
            problems=self._problems,
            notes=self._notes,
            changes=self._changes(),
            processes=[asdict(each) for each in generated.processes] if generated else [],
        )

    def _changes(self) -> list[ScalingChange]:
        if self._scaler is None or self._generated is None:
            return []
        t0_s = self._generated.t0_monotonic_s
        return [
            ScalingChange(each.t_s - t0_s, each.model, each.before, each.after, each.reason)
            for each in self._scaler.changes
        ]
