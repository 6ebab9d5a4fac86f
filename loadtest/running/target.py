"""Fills in the plan's target from the stack that runs on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from contracts.stack import Stack, default_run_dir, read_stack
from loadtest.planning.plan import Plan, Target
from loadtest.running.errors import TargetUnknown

DOORS = {
    "openai_chat": "http",
    "openai_embeddings": "http",
    "grpc_generate": "grpc",
    "grpc_tensors": "grpc",
}
"""Which address a kind of user needs."""


def resolve_target(plan: Plan) -> tuple[Plan, Stack | None]:
    """The plan with its addresses, and the stack when it is one of ours. Raises TargetUnknown.

    An address that the plan gives stays. When it is another server's, nothing of the local stack is taken: its
    memory would be shown for the wrong server.
    """
    stack = _find_stack(plan.target)
    target = plan.target if stack is None else _filled(plan.target, stack)
    needed = {DOORS[user.kind]: user.name for user in plan.users}
    for door, user in needed.items():
        if getattr(target, door) is None:
            folder = plan.target.run_dir or default_run_dir()
            raise TargetUnknown(
                f"user {user} needs target.{door}, the plan has none, and no stack of ours runs in {folder}; "
                f"start one with `tidegate up`, or write target: {{{door}: ...}} or target: {{run_dir: ...}}"
            )
    return plan.model_copy(update={"target": target}), stack


def needs(plan: Plan, door: str) -> bool:
    """Whether any user goes through that door: "http" or "grpc"."""
    return any(DOORS[user.kind] == door for user in plan.users)


def _find_stack(target: Target) -> Stack | None:
    folder = target.run_dir or default_run_dir()
    try:
        stack = read_stack(folder)
    except (OSError, msgspec.MsgspecError) as exc:
        raise TargetUnknown(f"the stack in {folder} can't be read: {exc}; is target.run_dir right?") from exc
    if stack is None or not Path(f"/proc/{stack.pid}").exists():
        return None
    return stack if target.run_dir is not None or _is_of(stack, target) else None


def _is_of(stack: Stack, target: Target) -> bool:
    given = [address for address in (_host_port(target.http), target.grpc) if address]
    ours = {stack.gateway_http, stack.gateway_grpc, stack.triton_http, stack.triton_grpc}
    return all(address in ours for address in given)


def _host_port(url: str | None) -> str | None:
    return urlsplit(url).netloc if url else None


def _filled(target: Target, stack: Stack) -> Target:
    """What the plan leaves out. gRPC goes through the gateway's door where there is one, else to Triton."""
    http = f"{stack.gateway_scheme}://{stack.gateway_http}" if stack.gateway_http else None
    found: dict[str, Any] = {
        "http": http,
        "grpc": stack.gateway_grpc or stack.triton_grpc or None,
        "triton_grpc": stack.triton_grpc or None,
        "triton_metrics": stack.triton_metrics or None,
        "node_socket": Path(stack.node_socket) if stack.node_socket else None,
        "run_dir": Path(stack.run_dir),
    }
    update = {name: value for name, value in found.items() if getattr(target, name) is None}
    if target.grpc is None and stack.gateway_grpc and stack.gateway_scheme == "https":
        update["grpc_tls"] = True
    return target.model_copy(update=update)
