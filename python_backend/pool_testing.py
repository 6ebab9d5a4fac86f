"""Lessors without a socket, for tests and benchmarks: the node's own books, and memory of this process alone."""

from __future__ import annotations

from collections.abc import Sequence

from python_backend.node.pool import Pool
from python_backend.node.pool_figures import Refused


class BooksLessor:
    """One worker's lessor straight on the books."""

    def __init__(self, pool: Pool, owner: int, model: str) -> None:
        self._pool, self._owner, self._model = pool, owner, model

    def lease(self, num_blocks: int, tenant: str) -> range | int:
        first = self._pool.lease(self._owner, self._model, tenant, num_blocks)
        return first.obtainable_blocks if isinstance(first, Refused) else range(first, first + num_blocks)

    def release(self, blocks: range) -> None:
        self._pool.release(self._owner, self._model, blocks.start, len(blocks))

    def match(self, digests: Sequence[bytes], tokens: bytes) -> list[int]:
        return self._pool.match(self._owner, self._model, digests, cut_tokens(tokens, len(digests)))

    def publish(
        self, blocks: Sequence[int], digests: Sequence[bytes], tokens: bytes, tenant: str
    ) -> list[bool]:
        return [
            self._pool.publish(self._owner, self._model, tenant, block, digest, content)
            for block, digest, content in zip(blocks, digests, cut_tokens(tokens, len(blocks)), strict=True)
        ]

    def drop(self, blocks: Sequence[int]) -> None:
        self._pool.drop(self._owner, self._model, blocks)


class OwnArena:
    """Blocks of an arena that nobody else uses. What comes back is not given out again; nothing is published."""

    def __init__(self, num_blocks: int) -> None:
        self._num_blocks = num_blocks
        self._next = 0

    def lease(self, num_blocks: int, tenant: str) -> range | int:
        if self._next + num_blocks > self._num_blocks:
            return self._num_blocks - self._next
        self._next += num_blocks
        return range(self._next - num_blocks, self._next)

    def release(self, blocks: range) -> None:
        pass

    def match(self, digests: Sequence[bytes], tokens: bytes) -> list[int]:
        return []

    def publish(
        self, blocks: Sequence[int], digests: Sequence[bytes], tokens: bytes, tenant: str
    ) -> list[bool]:
        return [False] * len(blocks)

    def drop(self, blocks: Sequence[int]) -> None:
        pass


def cut_tokens(tokens: bytes, num_blocks: int) -> list[bytes]:
    """The tokens of each block."""
    size = len(tokens) // num_blocks
    return [tokens[start : start + size] for start in range(0, len(tokens), size)]
