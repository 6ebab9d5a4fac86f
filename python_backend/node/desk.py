"""Where workers lease, publish and give back KV blocks: their messages turned into bytes of the pool."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from python_backend.channel import ProtocolError
from python_backend.messages import (
    ExtentLeased,
    LeaseBlocks,
    Message,
    ModelBound,
    PoolExhausted,
    ReleaseExtent,
    WorkerToNode,
)
from python_backend.node.leases import Leases
from python_backend.node.spares import Worker


class LeaseDesk:
    """`bound` is looked up at every message: models come and go. `answer` sends to a worker."""

    def __init__(
        self, leases: Leases, bound: Mapping[str, ModelBound], answer: Callable[[Worker, Message], None]
    ) -> None:
        self.leases = leases
        self._bound = bound
        self._answer = answer

    def serve(self, worker: Worker, message: WorkerToNode) -> None:
        """Raises ProtocolError, ExtentUnknown and ExtentFreedTwice: the worker is broken and has to go."""
        match message:
            case LeaseBlocks(num_blocks=num_blocks):
                self._answer(worker, self._lease(worker, num_blocks))
            case ReleaseExtent(first_block=first_block, num_blocks=num_blocks):
                block_bytes = self._block_bytes(worker)
                self.leases.release(worker.id, first_block * block_bytes, num_blocks * block_bytes)
            case _:
                raise ProtocolError(f"{type(message).__name__} is not served yet")

    def worker_gone(self, worker: Worker) -> int:
        """Everything that it held returns; the bytes that were."""
        return self.leases.release_all(worker.id)

    def _lease(self, worker: Worker, num_blocks: int) -> ExtentLeased | PoolExhausted:
        block_bytes = self._block_bytes(worker)
        if num_blocks <= 0:
            raise ProtocolError(f"asks for {num_blocks} blocks")
        offset = self.leases.lease(worker.id, num_blocks * block_bytes, block_bytes)
        if offset is None:
            return PoolExhausted(self.leases.largest_aligned_bytes(block_bytes) // block_bytes)
        return ExtentLeased(offset // block_bytes, num_blocks)

    def _block_bytes(self, worker: Worker) -> int:
        block_bytes = self._bound[worker.model].block_bytes
        if block_bytes <= 0:
            raise ProtocolError(f"model {worker.model} has no KV cache, its workers lease nothing")
        return block_bytes
