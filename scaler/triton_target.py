"""One Triton as a target: the models of our node, and models of others, each by its own rules."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

from scaler.draining import Say
from scaler.node_client import NodeClient
from scaler.node_target import NodeTarget
from scaler.observation import Counts
from scaler.stub_processes import end_stubs
from scaler.target import Limits, ScaleResult
from scaler.triton_client import TritonClient


class TritonTarget:
    """A `Target`. Close it."""

    def __init__(
        self,
        triton_grpc: str,
        run_dir: Path,
        *,
        node_socket: str,
        triton_pid: int,
        limits: Callable[[str], Limits],
        say: Say,
    ) -> None:
        """`triton_pid`: of the tritonserver on this host, so that stubs that never start can be ended."""
        self._triton = TritonClient(triton_grpc)
        self._node = NodeClient(node_socket)
        self._ours = NodeTarget(
            self._triton,
            self._node,
            run_dir,
            limits=limits,
            say=say,
            end_stubs=functools.partial(end_stubs, triton_pid),
        )

    async def close(self) -> None:
        await self._triton.close()
        await self._node.close()

    async def counts(self, model: str) -> Counts | None:
        return await self._ours.counts(model)

    async def scale(self, model: str, wanted: int, reason: str) -> ScaleResult:
        return await self._ours.scale(model, wanted, reason)
