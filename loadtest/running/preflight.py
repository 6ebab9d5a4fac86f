"""Whether a run may begin: what would make ten minutes of load worthless is found in the second before it."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterable
from typing import Any

import grpc
import numpy as np

from contracts import node_pb2, node_pb2_grpc
from loadtest.judging.expression import ExpressionError, parse_all
from loadtest.planning.load import ClosedLoop
from loadtest.planning.plan import Plan
from loadtest.planning.schedule import Schedule
from loadtest.running.doors import grpc_problems, http_problems
from loadtest.running.forecast import names_of

TIMEOUT_S = 10.0
STREAM_GUESS_S = 10.0
"""How long a request may be open, where the number of connections has to be guessed."""
SPARE_FILES = 128
MAX_CLOCK_GAP_S = 1.0


def problems_of(plan: Plan, schedule: Schedule) -> list[str]:
    """Each says what, and a way out. `plan`: with its target filled in."""
    return [
        *_slo_problems(plan),
        *http_problems(plan),
        *grpc_problems(plan),
        *_node_problems(plan),
        *_file_problems(schedule, plan),
    ]


def _slo_problems(plan: Plan) -> list[str]:
    try:
        parse_all(plan.slo, names_of(plan))
    except ExpressionError as exc:
        return list(exc.findings)
    return []


# --- the memory's sources ---


def _node_problems(plan: Plan) -> list[str]:
    socket = plan.target.node_socket
    if socket is None:
        return [
            f"the SLO has {line!r}, but nothing tells about KV memory: target.node_socket is not known"
            for line in plan.slo
            if line.split() and line.split()[0].startswith(("kv.", "pool."))
        ]
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        stub: Any = node_pb2_grpc.NodeStub(channel)  # type: ignore[no-untyped-call]  # generated
        try:
            stream = stub.WatchMemory(node_pb2.WatchMemoryRequest(period_ms=1000), timeout=TIMEOUT_S)
            sample = next(stream)
            now_s = time.monotonic()
            stream.cancel()
        except grpc.RpcError as exc:
            return [
                f"the node daemon at {socket} gives no samples: {exc.details()}; is target.node_socket right?"
            ]
    if abs(now_s - sample.monotonic_s) > MAX_CLOCK_GAP_S:
        return [
            f"the node daemon's clock is {now_s - sample.monotonic_s:+.1f} s from this process's; run the load "
            f"test on the same machine, in the same time namespace"
        ]
    return []


# --- this process ---


def _file_problems(schedule: Schedule, plan: Plan) -> Iterable[str]:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = num_streams(schedule, plan) + SPARE_FILES
    if limit != resource.RLIM_INFINITY and needed > limit:
        yield (
            f"about {needed} files are needed, one per open request, and this process may open {limit}; "
            f"`ulimit -n {needed}` raises it"
        )


def num_streams(schedule: Schedule, plan: Plan) -> int:
    """Requests that may be open at once: the slots of a closed loop, else the most that start within 10 s."""
    if isinstance(plan.load, ClosedLoop):
        return plan.load.concurrency
    t_s = schedule.t_intended_s
    if not len(t_s):
        return 0
    later = np.searchsorted(t_s, t_s + STREAM_GUESS_S, side="right")
    return int((later - np.arange(len(t_s))).max())
