"""One run of the children: started, told one t0, followed until each has told its last row, and never waited for in
vain. It blocks; give it a thread if need be."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from loadtest.generating.children import Child, Children
from loadtest.generating.collecting import Collector, OnRequest, Progress
from loadtest.generating.messages import Begin, End, News, Order, Target
from loadtest.generating.work import Work, digest_of
from loadtest.records import Requests, Status, columns_of

READY_TIMEOUT_S = 60.0
START_MARGIN_S = 0.3
"""From the last child's ready to t0: the word has to reach all."""
END_TIMEOUT_S = 10.0
"""From the end of the drain to a child's last word; then it hangs, and is killed."""
PROGRESS_EVERY_S = 0.25
MAX_LAG_P99_S = 0.020
"""A child whose event loop is later than this stamps chunks wrongly; the run says so."""


class Stop(Protocol):
    """`threading.Event`, `asyncio.Event` and gevent's alike."""

    def is_set(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class ProcessReport:
    """How well one process kept its times."""

    process: int
    pid: int
    num_sent: int
    dispatch_delay_p50_s: float
    """NaN: it sent nothing."""
    dispatch_delay_p99_s: float
    dispatch_delay_max_s: float
    loop_lag_p99_s: float
    """How late its event loop was, and so at most its time stamps of chunks; NaN: it did not live to tell."""
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Generated:
    """What a run left. `problems`: why its figures are not what the plan asked for; any makes it INVALID."""

    requests: Requests
    t0_monotonic_s: float
    t0_unix_s: float
    ended_s: float
    """When the last child had told all, on the run's clock."""
    processes: tuple[ProcessReport, ...]
    problems: list[str]


@dataclass(frozen=True, slots=True)
class Task:
    """What `generator.generate` makes of a plan; benches and tests make their own."""

    work: Work
    maker: str
    """With `argument` the children make the same work: `work.load_work`."""
    argument: bytes
    target: Target
    num_processes: int
    drain_s: float
    timeout_s: float

    def orders(self) -> list[Order]:
        return [
            Order(
                process,
                self.num_processes,
                self.maker,
                self.argument,
                self.target,
                self.drain_s,
                self.timeout_s,
            )
            for process in range(self.num_processes)
        ]


def run_task(
    task: Task,
    *,
    on_start: Callable[[float], None] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_request: OnRequest | None = None,
    stop: Stop | None = None,
) -> Generated:
    """Until every call has its row. `on_start` is told t0 (CLOCK_MONOTONIC) a moment before it comes.

    Never raises for what the server or a child does: that stands in rows and problems.
    """
    collector = Collector(task.work, on_request)
    with Children(task.orders()) as children:
        problems = _wait_ready(children, task)
        t0_s = time.monotonic() + START_MARGIN_S
        t0_unix_s = time.time() + t0_s - time.monotonic()
        ended_s = 0.0
        if not problems:
            if on_start is not None:
                on_start(t0_s)
            children.tell(Begin(t0_s))
            problems = _follow(children, task, collector, t0_s, on_progress, stop)
            ended_s = max(0.0, time.monotonic() - t0_s)
            collector.finish(min(ended_s, task.work.duration_s + task.drain_s), task.num_processes)
        reports = tuple(_report(child, collector) for child in children.all)
    problems += _findings(collector, reports)
    return Generated(columns_of(collector.rows), t0_s, t0_unix_s, ended_s, reports, problems)


def _wait_ready(children: Children, task: Task) -> list[str]:
    """Problems; none: all are ready."""
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    digest = digest_of(task.work)
    while any(child.ready is None for child in children.all):
        for _ in children.hear(0.1):
            pass
        if dead := [child for child in children.all if child.is_gone]:
            return [f"generator process {c.process} did not start: {c.last_words()}" for c in dead]
        if time.monotonic() > deadline_s:
            late = [str(child.process) for child in children.all if child.ready is None]
            return [f"generator processes {', '.join(late)} were not ready within {READY_TIMEOUT_S:g} s"]
    others = [str(c.process) for c in children.all if c.ready is not None and c.ready.digest != digest]
    if others:
        return [f"generator processes {', '.join(others)} drew another schedule than this one; report it"]
    return []


def _follow(
    children: Children,
    task: Task,
    collector: Collector,
    t0_s: float,
    on_progress: Callable[[Progress], None] | None,
    stop: Stop | None,
) -> list[str]:
    """Until all children are gone. A dead one ends the run: what it should send is missing."""
    problems: list[str] = []
    deadline_s = t0_s + task.work.duration_s + task.drain_s + END_TIMEOUT_S
    told_s = 0.0
    while not children.are_gone:
        for child, message in children.hear(PROGRESS_EVERY_S / 2):
            if isinstance(message, News):
                collector.take(child.process, message)
        now_s = time.monotonic()
        if on_progress is not None and now_s - told_s >= PROGRESS_EVERY_S:
            told_s = now_s
            on_progress(collector.progress(now_s - t0_s))
        if problems:
            if now_s > deadline_s:
                return problems
            continue
        problems = list(_reasons_to_end(children, task, now_s, t0_s, deadline_s, stop))
        if problems:
            children.tell(End())
            deadline_s = min(deadline_s, now_s + END_TIMEOUT_S)
    return problems or list(_reasons_to_end(children, task, time.monotonic(), t0_s, math.inf, None))


def _reasons_to_end(
    children: Children, task: Task, now_s: float, t0_s: float, deadline_s: float, stop: Stop | None
) -> Iterator[str]:
    at_s = max(0.0, now_s - t0_s)
    for child in children.all:
        if child.has_died:
            yield f"generator process {child.process} died {at_s:.1f} s into the run ({child.last_words()})"
        elif now_s > deadline_s and not child.is_gone:
            yield f"generator process {child.process} did not end with the run and was killed"
    if stop is not None and stop.is_set() and at_s < task.work.duration_s + task.drain_s:
        yield f"the run was stopped at {at_s:.1f} s of {task.work.duration_s:g} s"


def _findings(collector: Collector, reports: tuple[ProcessReport, ...]) -> Iterator[str]:
    if not collector.rows:
        yield "no request was sent; raise the rate or the duration"
    if count := sum(1 for _ in collector.counted(Status.NOT_SENT)):
        yield f"{count} of {len(collector.rows)} requests were due and not sent"
    if count := sum(row.error.startswith("generator:") for row in collector.counted(Status.ERROR)):
        yield f"{count} requests failed inside the generator, not at the server"
    for report in reports:
        if report.loop_lag_p99_s > MAX_LAG_P99_S:
            yield (
                f"generator process {report.process} read its answers up to {report.loop_lag_p99_s * 1000:.0f} ms "
                f"late (p99 of its event loop, at most {MAX_LAG_P99_S * 1000:g}); give it more processes or cores"
            )


def _report(child: Child, collector: Collector) -> ProcessReport:
    delays_s = [
        row.t_sent_s - row.t_intended_s
        for row in collector.rows
        if row.process == child.process and not math.isnan(row.t_sent_s)
    ]
    p50_s, p99_s, max_s = np.percentile(delays_s or [math.nan], (50, 99, 100)).tolist()
    finished = child.finished
    return ProcessReport(
        process=child.process,
        pid=child.popen.pid,
        num_sent=len(delays_s),
        dispatch_delay_p50_s=p50_s,
        dispatch_delay_p99_s=p99_s,
        dispatch_delay_max_s=max_s,
        loop_lag_p99_s=finished.loop_lag_p99_s if finished else math.nan,
        cpu_s=finished.cpu_s if finished else math.nan,
    )
