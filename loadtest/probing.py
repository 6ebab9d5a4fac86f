"""One rate after another on the real stack: a plan held at a rate, run, judged, and what it says of capacity."""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np

from contracts.capacity import Capacity, ModelCapacity
from contracts.stack import Stack
from loadtest.capacity import GivingUp, Probe, RateSearch
from loadtest.generating.collecting import Progress
from loadtest.planning.load import OpenLoop
from loadtest.planning.plan import Plan, parse_plan
from loadtest.planning.shapes import curve_of
from loadtest.run import Quiet, run_plan
from loadtest.running.folder import create_folder
from loadtest.running.forecast import Demand, forecast
from loadtest.running.machine import commit, describe_machine, describe_stack, fingerprint
from loadtest.running.overrides import override
from loadtest.running.result import RunResult
from loadtest.verdict import Verdict
from loadtest.watching.utilization import UtilizationWatch

BACKLOG_S = 15.0
"""A probe with more requests in flight than come in this time is given up."""


BURSTS = 1.5
"""Samples that come in bursts are worth fewer: a probe lasts so much longer than independent ones would need."""


class Probing:
    """All probes of one plan. Runs go into folders of their own."""

    def __init__(
        self,
        plan: Plan,
        plan_text: str,
        stack: Stack,
        model: str,
        folder: Path,
        probe_s: float,
        longest_probe_s: float,
    ) -> None:
        """Raises FolderTaken, OSError."""
        create_folder(folder)
        self._plan = plan
        self._text = plan_text
        self._stack = stack
        self._model = model
        self._folder = folder
        self._probe_s = probe_s
        self._longest_probe_s = longest_probe_s
        self._began_unix_s = time.time()

    def first_rate(self) -> float:
        """The plan's mean rate."""
        load = self._plan.load
        curve = curve_of(load.shape if isinstance(load, OpenLoop) else load)  # type: ignore[arg-type]
        return float(f"{curve.total / curve.duration_s:.3g}")

    def probe(self, count: int, rate_per_s: float) -> Probe:
        plan, text = self._held(rate_per_s, self._probe_s)
        needed_s = max((_likely_s(demand) for demand in forecast(plan).demands), default=0.0)
        longer_s = min(math.ceil(needed_s), self._longest_probe_s)
        if longer_s > self._probe_s:
            plan, text = self._held(rate_per_s, longer_s)
        watcher = _GivesUp(GivingUp(rate_per_s, BACKLOG_S))
        with UtilizationWatch(self._stack.scaler_grpc, self._model) as busy:
            result = run_plan(
                plan,
                self._folder / f"{self._model}-{count}-at-{rate_per_s:g}",
                plan_text=text,
                observer=watcher,
                stop=watcher.stop,
            )
        return _probe_of(rate_per_s, result, watcher.reason, busy.mean)

    def _held(self, rate_per_s: float, duration_s: float) -> tuple[Plan, str]:
        shape = f"{{kind: hold, rate_per_s: {rate_per_s}, duration_s: {duration_s}}}"
        text = override(self._text, [f"load.shape={shape}"])
        return parse_plan(text, self._folder), text

    def capacity(self, found: Mapping[int, RateSearch]) -> Capacity:
        passed = {count: search.passed for count, search in found.items()}
        return Capacity(
            plan=self._plan.name,
            plan_sha256=hashlib.sha256(self._text.encode()).hexdigest(),
            measured_unix_s=self._began_unix_s,
            commit=commit(),
            fingerprint=fingerprint(describe_stack(self._stack)),
            machine=describe_machine(),
            models={
                self._model: ModelCapacity(
                    rates_per_s={count: best.rate_per_s if best else 0.0 for count, best in passed.items()},
                    concurrency={
                        count: best.concurrency
                        for count, best in passed.items()
                        if best and best.concurrency is not None
                    },
                    utilization={
                        count: best.utilization
                        for count, best in passed.items()
                        if best and best.utilization is not None
                    },
                )
            },
        )

    def write(self, found: Mapping[int, RateSearch]) -> Path:
        path = self._folder / "capacity.json"
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self.capacity(found)), indent=1))
        return path


def _likely_s(demand: Demand) -> float:
    """How long a rate must be held for a server that has some answers over the limit, some of them in bursts."""
    return BURSTS * (demand.needed_duration_s or 0.0) * (demand.likely or demand.needed) / demand.needed


class _GivesUp(Quiet):
    """Sets `stop` when the probe can no longer pass."""

    def __init__(self, rule: GivingUp) -> None:
        self.stop = threading.Event()
        self.reason = ""
        self._rule = rule

    def progress(self, progress: Progress) -> None:
        if not self.reason:
            self.reason = self._rule.reason(progress.num_in_flight, progress.num_done, progress.num_failed)
            if self.reason:
                self.stop.set()


def _probe_of(rate_per_s: float, result: RunResult, given_up: str, utilization: float | None) -> Probe:
    """A run that was given up says why itself; its own verdict is that it was stopped."""
    if given_up:
        return Probe(rate_per_s, Verdict.FAIL, given_up)
    verdict = result.judgement.verdict
    bad = [row for row in result.judgement.rows if row.verdict is verdict]
    why = "" if verdict is Verdict.PASS else f"{bad[0].expression}: {bad[0].why}"
    return Probe(rate_per_s, verdict, why, _concurrency(result), utilization)


def _concurrency(result: RunResult) -> float | None:
    """Mean of requests in flight over the run: by Little's law, the requests' own time in it."""
    requests = result.requests
    span_s = result.plan.duration_s
    if not len(requests) or span_s <= 0:
        return None
    # What was never sent has no time, and was not in flight.
    return float(np.nansum(requests.t_last_s - requests.t_sent_s) / span_s)
