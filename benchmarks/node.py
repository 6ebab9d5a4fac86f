"""What the node daemon says, for benchmarks and tests."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import psutil

from contracts import node_pb2, node_pb2_grpc


def node_status(socket_path: str) -> node_pb2.NodeStatus:
    with grpc.insecure_channel(f"unix:{socket_path}") as channel:
        stub: Any = node_pb2_grpc.NodeStub(channel)  # type: ignore[no-untyped-call]
        status: node_pb2.NodeStatus = stub.GetStatus(node_pb2.GetStatusRequest(), timeout=5)
        return status


def wait_until(
    socket_path: str, condition: Callable[[node_pb2.NodeStatus], bool], timeout_s: float = 30.0
) -> node_pb2.NodeStatus:
    """The first status that fulfils the condition. Raises TimeoutError with the last one."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        status = node_status(socket_path)
        if condition(status):
            return status
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"not within {timeout_s:.0f} s; last status:\n{status}")
        time.sleep(0.02)


def num_spares(status: node_pb2.NodeStatus, model: str) -> int:
    return next(entry.num_spares for entry in status.models if entry.name == model)


def pss_bytes(pid: int) -> int:
    """Proportional set size: shared pages are split among those who map them."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"no Pss in smaps_rollup of {pid}")


def cpu_s_of_trees(pids: Iterable[int]) -> float:
    """CPU seconds so far of these processes and of all that descend from them, those that have ended included."""
    total = 0.0
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            for each in (process, *process.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    times = each.cpu_times()
                    total += times.user + times.system + times.children_user + times.children_system
    return total


def pss_of_trees(pids: Iterable[int]) -> int:
    """Bytes of PSS of these processes and all that descend from them; who has just ended counts nothing."""
    waiting, total = list(pids), 0
    while waiting:
        pid = waiting.pop()
        with suppress(FileNotFoundError, ProcessLookupError, ValueError):
            total += pss_bytes(pid)
            for children in Path(f"/proc/{pid}/task").glob("*/children"):
                waiting += map(int, children.read_text().split())
    return total
