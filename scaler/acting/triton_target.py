"""One Triton as a target: the models of our node, and models of others, each by its own rules."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

from scaler.acting.draining import Say
from scaler.acting.node_target import NodeTarget
from scaler.acting.ownership import HostLock
from scaler.acting.plain_target import PlainTarget
from scaler.acting.stub_processes import end_stubs
from scaler.acting.target import Limits, ScaleResult
from scaler.deciding.observation import Counts
from scaler.errors import NodeUnreachable, OwnedByOther
from scaler.node_client import NodeClient
from scaler.triton_client import TritonClient


class TritonTarget:
    """A `Target`. While it is open no other scaler of this host can open one for the same Triton. Close it."""

    def __init__(
        self,
        triton_grpc: str,
        run_dir: Path,
        *,
        key: str = "",
        node_socket: str = "",
        triton_pid: int = 0,
        limits: Callable[[str], Limits],
        say: Say,
    ) -> None:
        """`run_dir` keeps what has to outlast this process. `node_socket`: "" without a node of ours. `triton_pid`:
        of the tritonserver, where it is on this host, so that stubs that never start can be ended.

        Raises OwnedByOther.
        """
        self._locks = [HostLock.of_triton(triton_grpc)]
        if node_socket:
            try:
                self._locks.append(HostLock.of_node(node_socket))
            except OwnedByOther:
                self._unlock()
                raise
        self._triton = TritonClient(triton_grpc, key)
        self._plain = PlainTarget(self._triton, run_dir, limits=limits, say=say)
        self._node = NodeClient(node_socket) if node_socket else None
        self._of_node: set[str] = set()
        if self._node:
            ender = functools.partial(end_stubs, triton_pid) if triton_pid else None
            self._ours = NodeTarget(
                self._triton, self._node, run_dir, limits=limits, say=say, end_stubs=ender
            )

    async def close(self) -> None:
        await self._triton.close()
        if self._node:
            await self._node.close()
        self._unlock()

    def _unlock(self) -> None:
        for lock in self._locks:
            lock.close()

    async def counts(self, model: str) -> Counts | None:
        try:
            return await (await self._target_of(model)).counts(model)
        except NodeUnreachable:
            return None

    async def scale(self, model: str, wanted: int, reason: str) -> ScaleResult:
        return await (await self._target_of(model)).scale(model, wanted, reason)

    async def _target_of(self, model: str) -> NodeTarget | PlainTarget:
        """Raises NodeUnreachable while it can't be known whose the model is."""
        if self._node is None:
            return self._plain
        if model not in self._of_node:
            self._of_node |= {known.name for known in (await self._node.status()).models}
        return self._ours if model in self._of_node else self._plain
