"""What a bound model's workers do, by the model's kind."""

from __future__ import annotations

from typing import Protocol

from python_backend.channel import PacketChannel
from python_backend.messages import BindModel, NodeToWorker, SpawnWorker
from python_backend.worker.batching import BatchRole, EmbedRole
from python_backend.worker.errors import ModelRefused
from python_backend.worker.generating import GenerateRole


class Role(Protocol):
    """Made once per model in the fork server, inherited by its workers."""

    @property
    def bind(self) -> BindModel: ...

    @property
    def block_bytes(self) -> int:
        """Size of one KV block, all layers; 0 for models without a KV cache."""
        ...

    @property
    def block_tokens(self) -> int: ...

    @property
    def max_context_tokens(self) -> int: ...

    def run(self, spawn: SpawnWorker, control: PacketChannel[NodeToWorker], fds: list[int]) -> None:
        """A worker's whole life after the fork: warm up, stand by, serve. `fds`: what came with `spawn` beside
        the control socket. Raises WorkerExit."""
        ...


def bind_role(bind: BindModel, weights_fd: int) -> Role:
    """Raises ModelRefused, and whatever a user's broken folder makes the libraries raise."""
    if bind.kind == "generate":
        return GenerateRole.of(bind, weights_fd)
    if bind.kind == "embed":
        return EmbedRole.of(bind, weights_fd)
    if bind.kind == "batch":
        return BatchRole.of(bind, weights_fd)
    raise ModelRefused(f"{bind.model}: no workers serve models of kind {bind.kind!r}")
