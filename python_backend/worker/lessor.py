"""The worker's side of its leases: blocks over the control socket to the node."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TypeVar

from python_backend.channel import PacketChannel, ProtocolError, close_fds
from python_backend.messages import (
    BlocksPublished,
    BlocksReclaimed,
    DropBlocks,
    ExtentLeased,
    LeaseBlocks,
    MatchPrefix,
    Message,
    NodeToWorker,
    PoolExhausted,
    PrefixMatched,
    PublishBlocks,
    ReclaimBlocks,
    ReleaseExtent,
)
from python_backend.worker.prefix import DIGEST_BYTES

REPLY_TIMEOUT_S = 5.0
"""A node that is silent for this long is taken for dead: a worker must not hang on it for ever."""
MAX_MESSAGE_BYTES = 48 * 1024
"""Of digests, block ids and tokens: the rest of a packet is msgpack's."""

T = TypeVar("T")


class NodeLessor:
    """Asks the node and waits (11-70 µs). What else arrives meanwhile is kept in `unread`, but for ReclaimBlocks:
    who asks for blocks is short itself and has none to give, and two that are short must not wait for each other.

    Every method raises PeerLost when the node is gone, TimeoutError when it does not answer.
    """

    def __init__(self, control: PacketChannel[NodeToWorker]) -> None:
        self._control = control
        self.unread: deque[tuple[NodeToWorker, list[int]]] = deque()

    def lease(self, num_blocks: int, tenant: str) -> range | int:
        kinds: tuple[type[ExtentLeased | PoolExhausted], ...] = (ExtentLeased, PoolExhausted)
        answer = self._ask(LeaseBlocks(num_blocks, tenant), kinds)
        if isinstance(answer, ExtentLeased):
            return range(answer.first_block, answer.first_block + answer.num_blocks)
        return answer.obtainable_blocks

    def release(self, blocks: range) -> None:
        self._control.send(ReleaseExtent(blocks.start, len(blocks)))

    def match(self, digests: Sequence[bytes], tokens: bytes) -> list[int]:
        found: list[int] = []
        for first, last in _packets(len(digests), tokens):
            part = tokens[first * len(tokens) // len(digests) : last * len(tokens) // len(digests)]
            answer = self._ask(MatchPrefix(list(digests[first:last]), part), (PrefixMatched,))
            found += answer.blocks
            if len(answer.blocks) < last - first:
                break
        return found

    def publish(
        self, blocks: Sequence[int], digests: Sequence[bytes], tokens: bytes, tenant: str
    ) -> list[bool]:
        accepted: list[bool] = []
        for first, last in _packets(len(blocks), tokens):
            part = tokens[first * len(tokens) // len(blocks) : last * len(tokens) // len(blocks)]
            message = PublishBlocks(list(blocks[first:last]), list(digests[first:last]), part, tenant)
            accepted += self._ask(message, (BlocksPublished,)).accepted
        if len(accepted) != len(blocks):
            raise ProtocolError(f"the node answered for {len(accepted)} blocks of {len(blocks)}")
        return accepted

    def drop(self, blocks: Sequence[int]) -> None:
        for first in range(0, len(blocks), MAX_MESSAGE_BYTES // 8):
            self._control.send(DropBlocks(list(blocks[first : first + MAX_MESSAGE_BYTES // 8])))

    def reclaimed(self) -> None:
        """The answer to ReclaimBlocks, once everything unused was released."""
        self._control.send(BlocksReclaimed())

    def _ask(self, question: Message, answers: tuple[type[T], ...]) -> T:
        self._control.send(question)
        while True:
            message, fds = self._control.receive_soon(REPLY_TIMEOUT_S)
            if isinstance(message, answers):
                close_fds(fds)
                return message
            if isinstance(message, ReclaimBlocks):
                self.reclaimed()
                continue
            self.unread.append((message, fds))


def _packets(num_blocks: int, tokens: bytes) -> list[tuple[int, int]]:
    """Cut so many blocks into ranges that each fit a packet."""
    per_block = len(tokens) // num_blocks + DIGEST_BYTES + 16
    step = max(1, MAX_MESSAGE_BYTES // per_block)
    return [(first, min(first + step, num_blocks)) for first in range(0, num_blocks, step)]
