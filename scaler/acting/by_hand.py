"""Scaling a model of a running stack once, without a scaler: `tidegate scale`, benchmarks and tests."""

from __future__ import annotations

import asyncio
import functools
from pathlib import Path

from contracts.stack import Stack
from scaler.acting import resting
from scaler.acting.actuator import Actuator, InstanceChange, Patience
from scaler.acting.draining import Say
from scaler.acting.rest_actuator import RestActuator
from scaler.acting.stub_processes import end_stubs
from scaler.node_client import NodeClient
from scaler.triton_client import TritonClient


async def scale(
    stack: Stack,
    model: str,
    num_instances: int,
    *,
    on_event: Say,
    drain_timeout_s: float = Patience.drain_s,
) -> InstanceChange:
    """Raises what `scaler.errors` names. A model at rest is brought back."""
    triton = TritonClient(stack.triton_grpc, stack.triton_key)
    node = NodeClient(stack.node_socket)
    run_dir, patience = Path(stack.run_dir), Patience(drain_s=drain_timeout_s)
    ender = functools.partial(end_stubs, stack.pids["tritonserver"])
    try:
        if await resting.is_loaded(triton, model) is False:
            rest = RestActuator(triton, node, run_dir, say=on_event, end_stubs=ender)
            change = await rest.bring_back(model, num_instances, patience)
            if len(change.after) == num_instances:
                return change
        actuator = Actuator(triton, node, run_dir, say=on_event, end_stubs=ender)
        return await actuator.scale(model, num_instances, patience)
    finally:
        await asyncio.gather(triton.close(), node.close())
