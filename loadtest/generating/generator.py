"""The way in: a plan's calls, sent by child processes, and a row of each."""

from __future__ import annotations

import math
import os
from collections.abc import Callable

import msgspec
import numpy as np

from contracts.stack import default_run_dir
from contracts.tracing.sending import SPANS_SOCKET_NAME
from loadtest.generating.collecting import OnRequest, Progress
from loadtest.generating.fleet import Generated, ProcessReport, Stop, Task, run_task
from loadtest.generating.messages import Target
from loadtest.generating.planned import PlannedWork
from loadtest.generating.work import Work
from loadtest.planning.plan import Plan
from loadtest.planning.schedule import Schedule

MAKER = "loadtest.generating.planned:planned_work"
CALLS_PER_S_PER_PROCESS = 100
STREAM_GUESS_S = 10.0
"""How long a stream lasts, where the number of processes must be chosen before anything is known."""

__all__ = ["Generated", "ProcessReport", "Progress", "generate", "num_processes_for"]


def generate(
    plan: Plan,
    schedule: Schedule,
    *,
    on_start: Callable[[float], None] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_request: OnRequest | None = None,
    stop: Stop | None = None,
) -> Generated:
    """Sends the schedule's calls to `plan.target`, whose addresses must stand in it by now; blocks until all ended.

    `on_start` is told t0 (CLOCK_MONOTONIC) a moment before it comes; `on_request` of each row as it is known.
    Never raises for what the server or a child does: that stands in the rows and in `problems`.
    """
    work = PlannedWork(plan, schedule)
    given = plan.generator
    task = Task(
        work=work,
        maker=MAKER,
        argument=msgspec.json.encode(plan.model_dump(mode="json")),
        target=target_of(plan),
        num_processes=given.processes or num_processes_for(work, given.streams_per_process),
        drain_s=plan.drain_s,
        timeout_s=given.request_timeout_s,
    )
    return run_task(task, on_start=on_start, on_progress=on_progress, on_request=on_request, stop=stop)


def target_of(plan: Plan) -> Target:
    given = plan.target
    spans_socket = (given.run_dir or default_run_dir()) / SPANS_SOCKET_NAME
    return Target(
        http=(given.http or "").rstrip("/"),
        grpc=given.grpc or "",
        key_env=given.key_env or "",
        ca_file=str(given.ca or ""),
        cert_file=str(given.cert or ""),
        cert_key_file=str(given.cert_key or ""),
        is_grpc_tls=given.grpc_tls,
        spans_socket=str(spans_socket) if spans_socket.exists() else "",
    )


def num_processes_for(work: Work, streams_per_process: int, num_cpus: int | None = None) -> int:
    """As many as the peak second's calls or the streams need, at most one a CPU."""
    if work.hold is not None:
        streams, calls_per_s = float(len(work.hold.starts_s)), 0.0
    else:
        counts = np.bincount(work.t_intended_s.astype(np.int64), minlength=1)
        calls_per_s = float(counts.max())
        streams = min(calls_per_s * STREAM_GUESS_S, float(len(work.t_intended_s)))
    needed = max(streams / streams_per_process, calls_per_s / CALLS_PER_S_PER_PROCESS)
    return max(1, min(math.ceil(needed), num_cpus or len(os.sched_getaffinity(0))))
