"""What a running stack is doing: asked of node, Triton, scaler and /proc, each allowed to be silent.

Read-only. A part that does not answer is reported as such; the others are still told.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import Any

import httpx
import psutil

from contracts.stack import Stack
from contracts.triton_key import http_headers
from tidegate.cpu_tiers import read_cpu_flags, slow_tier_warnings
from tidegate.routes_status import refused_edits

NODE_TIMEOUT_S = 3.0
TRITON_TIMEOUT_S = 3.0
SCALER_TIMEOUT_S = 3.0
TOKEN_VARIABLE = "TIDEGATE_SCALER_TOKEN"  # noqa: S105 - the variable's name


@dataclass(frozen=True)
class ProcessState:
    name: str
    pid: int
    is_alive: bool
    rss_bytes: int
    """Resident, pages shared with others included."""
    num_threads: int


@dataclass(frozen=True)
class TritonModel:
    """From Triton's index and statistics; counts are since it started."""

    name: str
    state: str
    reason: str
    num_inferences: int = 0
    num_executions: int = 0
    num_failed: int = 0


@dataclass(frozen=True)
class StackStatus:
    run_dir: str
    pid: int
    uptime_s: float
    gateway_http: str
    triton_http: str
    triton_grpc: str
    processes: list[ProcessState]
    node: dict[str, Any] | None
    """contracts/node.proto's NodeStatus, field by field. None: no node, or it does not answer."""
    triton_models: list[TritonModel] | None
    scaler: dict[str, Any] | None
    """contracts/scaler.proto's ScalerStatus, field by field. None: no scaler, or it does not answer."""
    problems: list[str] = field(default_factory=list)
    gateway_scheme: str = "http"
    warnings: list[str] = field(default_factory=list)
    """What works, but not as well as it could."""

    @property
    def is_whole(self) -> bool:
        return not self.problems


def gather(stack: Stack) -> StackStatus:
    problems: list[str] = []
    processes = [process_state(name, pid) for name, pid in {"tidegate up": stack.pid, **stack.pids}.items()]
    problems += [
        f"{process.name} (pid {process.pid}) is gone" for process in processes if not process.is_alive
    ]
    return StackStatus(
        run_dir=stack.run_dir,
        pid=stack.pid,
        uptime_s=time.time() - stack.started_unix_s,
        gateway_http=stack.gateway_http,
        gateway_scheme=stack.gateway_scheme,
        triton_http=stack.triton_http,
        triton_grpc=stack.triton_grpc,
        processes=processes,
        node=ask_node(stack.node_socket, problems) if stack.node_socket else None,
        triton_models=ask_triton(stack, problems),
        scaler=ask_scaler(stack.scaler_grpc, problems) if stack.scaler_grpc else None,
        problems=problems,
        warnings=[*slow_tier_warnings(stack.models, read_cpu_flags()), *refused_edits(stack)],
    )


def process_state(name: str, pid: int) -> ProcessState:
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            is_alive = process.status() != psutil.STATUS_ZOMBIE
            return ProcessState(name, pid, is_alive, process.memory_info().rss, process.num_threads())
    except psutil.NoSuchProcess:
        return ProcessState(name, pid, is_alive=False, rss_bytes=0, num_threads=0)


def ask_node(socket_path: str, problems: list[str]) -> dict[str, Any] | None:
    import grpc

    from contracts import node_pb2, node_pb2_grpc

    with grpc.insecure_channel(f"unix:{socket_path}") as channel:
        node = node_pb2_grpc.NodeStub(channel)  # type: ignore[no-untyped-call]
        try:
            return plain(node.GetStatus(node_pb2.GetStatusRequest(), timeout=NODE_TIMEOUT_S))
        except grpc.RpcError as exc:
            reason = exc.details() if isinstance(exc, grpc.Call) else str(exc)
            problems.append(f"the node daemon does not answer on {socket_path}: {reason}")
            return None


def ask_scaler(address: str, problems: list[str]) -> dict[str, Any] | None:
    import grpc

    from contracts import scaler_pb2, scaler_pb2_grpc

    token = os.environ.get(TOKEN_VARIABLE)
    metadata = (("authorization", f"Bearer {token}"),) if token else None
    with grpc.insecure_channel(address) as channel:
        scaler = scaler_pb2_grpc.ScalerStub(channel)  # type: ignore[no-untyped-call]
        request = scaler_pb2.GetStatusRequest()
        try:
            return plain(scaler.GetStatus(request, timeout=SCALER_TIMEOUT_S, metadata=metadata))
        except grpc.RpcError as exc:
            reason = exc.details() if isinstance(exc, grpc.Call) else str(exc)
            problems.append(f"the scaler does not answer on {address}: {reason}")
            return None


def plain(message: Any) -> dict[str, Any]:
    """A protobuf message as JSON's types, with every field, and whole numbers as such; None: absent."""
    values: dict[str, Any] = {}
    for entry in message.DESCRIPTOR.fields:
        value = getattr(message, entry.name)
        if entry.has_presence and not message.HasField(entry.name):
            values[entry.name] = None
        elif entry.message_type is None:
            values[entry.name] = value if isinstance(value, (str, bytes, int, float)) else list(value)
        elif hasattr(value, "DESCRIPTOR"):
            values[entry.name] = plain(value)
        else:
            values[entry.name] = [plain(item) for item in value]
    return values


def ask_triton(stack: Stack, problems: list[str]) -> list[TritonModel] | None:
    try:
        headers = http_headers(stack.triton_key)
        with httpx.Client(
            base_url=f"http://{stack.triton_http}", timeout=TRITON_TIMEOUT_S, headers=headers
        ) as client:
            index = client.post("/v2/repository/index", json={})
            index.raise_for_status()
            stats = client.get("/v2/models/stats")
            return read_triton(index.json(), stats.json() if stats.is_success else {})
    except (httpx.HTTPError, ValueError, OSError) as exc:
        problems.append(f"Triton does not answer on {stack.triton_http}: {exc}")
        return None


def read_triton(index: list[dict[str, Any]], stats: dict[str, Any]) -> list[TritonModel]:
    """Triton's two answers -> one row a model."""
    by_name = {entry["name"]: entry for entry in stats.get("model_stats", [])}
    models = []
    for entry in index:
        found = by_name.get(entry["name"], {})
        failed = found.get("inference_stats", {}).get("fail", {}).get("count", 0)
        models.append(
            TritonModel(
                name=entry["name"],
                state=entry.get("state", "NOT LOADED"),
                reason=entry.get("reason", ""),
                num_inferences=found.get("inference_count", 0),
                num_executions=found.get("execution_count", 0),
                num_failed=failed,
            )
        )
    return models
