"""Where workers lease, publish and give back KV blocks: their messages turned into bytes of the pool.

A lease that the pool cannot grant waits for idle workers to give back what they do not use, at most
`RECLAIM_TIMEOUT_S`; then the answer is "exhausted". The asker blocks meanwhile, so it is never asked itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from python_backend.channel import ProtocolError
from python_backend.messages import (
    BlocksPublished,
    BlocksReclaimed,
    DropBlocks,
    ExtentLeased,
    LeaseBlocks,
    MatchPrefix,
    Message,
    ModelBound,
    PoolExhausted,
    PrefixMatched,
    PublishBlocks,
    ReclaimBlocks,
    ReleaseExtent,
    WorkerToNode,
)
from python_backend.node.instances import WorkerId
from python_backend.node.pool import Pool
from python_backend.node.pool_figures import Refused
from python_backend.node.spares import Worker

logger = logging.getLogger(__name__)

RECLAIM_TIMEOUT_S = 0.05
TOKEN_BYTES = 4
MAX_BLOCKS_A_MESSAGE = 4096


@dataclass
class _Waiting:
    """A lease that waits for others to give back."""

    worker: Worker
    wanted: LeaseBlocks
    asked: set[WorkerId] = field(default_factory=set)
    timer: asyncio.TimerHandle | None = None


class LeaseDesk:
    """`bound` is looked up at every message: models come and go. `answer` sends to a worker; `idle_workers` lists
    those that serve nobody just now."""

    def __init__(
        self,
        pool: Pool,
        bound: Mapping[str, ModelBound],
        answer: Callable[[Worker, Message], None],
        idle_workers: Callable[[], list[Worker]],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.pool = pool
        self._bound = bound
        self._answer = answer
        self._idle_workers = idle_workers
        self._loop = loop
        self._waiting: list[_Waiting] = []

    def serve(self, worker: Worker, message: WorkerToNode) -> None:
        """Raises ProtocolError and PoolError: the worker is broken and has to go."""
        bound = self._bound_of(worker)
        match message:
            case LeaseBlocks():
                self._lease(worker, message)
            case ReleaseExtent(first_block=first_block, num_blocks=num_blocks):
                self.pool.release(worker.id, worker.model, first_block, num_blocks)
            case MatchPrefix(hashes=hashes, tokens=tokens):
                contents = _cut(tokens, len(hashes), bound)
                self._answer(
                    worker, PrefixMatched(self.pool.match(worker.id, worker.model, hashes, contents))
                )
            case PublishBlocks():
                self._publish(worker, message, bound)
            case DropBlocks(blocks=blocks):
                self.pool.drop(worker.id, worker.model, blocks)
            case BlocksReclaimed():
                self._reclaimed(worker.id)
            case _:
                raise ProtocolError(f"{type(message).__name__} is not for the lease desk")

    def worker_gone(self, worker: Worker) -> int:
        """Everything that it held returns, and nobody waits for it; the bytes that were on lease."""
        returned_bytes = self.pool.forget(worker.id)
        for waiting in list(self._waiting):
            if waiting.worker.id == worker.id:
                self._stop_waiting(waiting)
        self._reclaimed(worker.id)
        return returned_bytes

    def close(self) -> None:
        for waiting in list(self._waiting):
            self._stop_waiting(waiting)

    # --- leases ---

    def _lease(self, worker: Worker, wanted: LeaseBlocks) -> None:
        if wanted.num_blocks <= 0:
            raise ProtocolError(f"asks for {wanted.num_blocks} blocks")
        refused = self._try_lease(worker, wanted)
        if refused is None:
            return
        if not refused.is_in_pieces and (others := self._others(worker)):
            # Whatever the rule: floors and ceilings, too, count what idle workers hold.
            self._ask_back(worker, wanted, others)
            return
        self._refuse(worker, refused)

    def _refuse(self, worker: Worker, refused: Refused) -> None:
        self._answer(worker, PoolExhausted(refused.largest_blocks, refused.reason, refused.obtainable_blocks))

    def _try_lease(self, worker: Worker, wanted: LeaseBlocks) -> Refused | None:
        """None: granted and answered."""
        granted = self.pool.lease(worker.id, worker.model, wanted.tenant, wanted.num_blocks)
        if isinstance(granted, Refused):
            return granted
        self._answer(worker, ExtentLeased(granted, wanted.num_blocks))
        return None

    def _others(self, asker: Worker) -> list[Worker]:
        """Idle workers that hold something and do not wait for an answer themselves."""
        blocked = {waiting.worker.id for waiting in self._waiting} | {asker.id}
        return [
            worker
            for worker in self._idle_workers()
            if worker.id not in blocked and self.pool.leased_bytes(worker.id)
        ]

    def _ask_back(self, worker: Worker, wanted: LeaseBlocks, others: list[Worker]) -> None:
        waiting = _Waiting(worker, wanted, {other.id for other in others})
        self._waiting.append(waiting)
        waiting.timer = self._loop.call_later(RECLAIM_TIMEOUT_S, self._conclude, waiting)
        for other in others:
            self._answer(other, ReclaimBlocks(wanted.num_blocks))

    def _reclaimed(self, by: WorkerId) -> None:
        for waiting in list(self._waiting):
            waiting.asked.discard(by)
            if not waiting.asked:
                self._conclude(waiting)

    def _conclude(self, waiting: _Waiting) -> None:
        """All have answered, or their time is up: the last try."""
        if waiting not in self._waiting:
            return
        self._stop_waiting(waiting)
        refused = self._try_lease(waiting.worker, waiting.wanted)
        if refused is not None:
            self._refuse(waiting.worker, refused)

    def _stop_waiting(self, waiting: _Waiting) -> None:
        self._waiting.remove(waiting)
        if waiting.timer is not None:
            waiting.timer.cancel()

    # --- prefix blocks ---

    def _publish(self, worker: Worker, message: PublishBlocks, bound: ModelBound) -> None:
        if len(message.blocks) != len(message.hashes):
            raise ProtocolError(f"publishes {len(message.blocks)} blocks with {len(message.hashes)} hashes")
        contents = _cut(message.tokens, len(message.hashes), bound)
        accepted = [
            self.pool.publish(worker.id, worker.model, message.tenant, block, digest, content)
            for block, digest, content in zip(message.blocks, message.hashes, contents, strict=True)
        ]
        self._answer(worker, BlocksPublished(accepted))

    def _bound_of(self, worker: Worker) -> ModelBound:
        bound = self._bound[worker.model]
        if bound.block_bytes <= 0:
            raise ProtocolError(f"model {worker.model} has no KV cache, its workers lease nothing")
        return bound


def _cut(tokens: bytes, num_blocks: int, bound: ModelBound) -> list[bytes]:
    """The tokens of each block. Raises ProtocolError."""
    size = bound.block_tokens * TOKEN_BYTES
    if num_blocks > MAX_BLOCKS_A_MESSAGE or len(tokens) != num_blocks * size:
        raise ProtocolError(f"{len(tokens)} bytes of tokens for {num_blocks} blocks of {bound.block_tokens}")
    return [tokens[start : start + size] for start in range(0, len(tokens), size)]
