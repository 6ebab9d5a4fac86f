"""What a run's figures hold for: the machine, the code, the stack's models. Read once, before the load."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc
import msgspec
import psutil

from contracts import node_pb2, node_pb2_grpc
from contracts.stack import Stack

ROOT = Path(__file__).resolve().parents[2]
CALL_TIMEOUT_S = 5.0


def describe_machine() -> dict[str, str]:
    """Words for people; `commit` is also what a launch check compares."""
    memory = psutil.virtual_memory()
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    return {
        "processor": _processor(),
        "cores": f"{len(os.sched_getaffinity(0))} usable of {os.cpu_count()}",
        "memory": f"{memory.total / 2**30:.1f} GiB, {memory.available / 2**30:.1f} GiB available",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "tidegate": importlib.metadata.version("tidegate"),
        "commit": commit(),
        "load average before": load,
    }


def commit() -> str:
    """Of the checkout that this code is in, "-dirty" when files differ from it; "" outside of one."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def describe_stack(stack: Stack | None) -> dict[str, Any]:
    """What decides how the stack performs: served models with the digests of their weights, and the pool's size.

    {} without a stack of ours.
    """
    if stack is None:
        return {}
    status = _node_status(stack)
    return {
        "models": [msgspec.to_builtins(model) for model in stack.models],
        "pool_bytes": status.pool.total_bytes if status else 0,
        "weights": {each.name: each.fingerprint for each in status.models} if status else {},
    }


def fingerprint(described: Mapping[str, Any]) -> str:
    """Equal when what `describe_stack` says is equal; "" of nothing."""
    if not described:
        return ""
    canonical = msgspec.json.encode(described, order="deterministic")
    return hashlib.sha256(canonical).hexdigest()[:16]


def _node_status(stack: Stack) -> node_pb2.NodeStatus | None:
    with grpc.insecure_channel(f"unix:{stack.node_socket}") as channel:
        stub: Any = node_pb2_grpc.NodeStub(channel)  # type: ignore[no-untyped-call]  # generated
        try:
            status: node_pb2.NodeStatus = stub.GetStatus(node_pb2.GetStatusRequest(), timeout=CALL_TIMEOUT_S)
        except grpc.RpcError:
            return None
    return status


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
