"""The worker's KV blocks: which are free, which belong to which sequence. Bookkeeping only.

Blocks come from the node in extents (contiguous block ids) through a `Lessor` and go back the same way.
A slot is one token's place: `slot = block * block_tokens + offset`.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from python_backend.worker.sequence import Sequence


class Lessor(Protocol):
    """Where extents come from: the node's socket, or a fake."""

    def lease(self, num_blocks: int) -> range | None:
        """Contiguous block ids, as many as asked; None when the pool has no such extent."""
        ...

    def release(self, extent: range) -> None: ...


class BlockPool:
    """Blocks on lease and who uses them. Every block is either free here or in exactly one sequence."""

    def __init__(self, lessor: Lessor, block_tokens: int, extent_blocks: int = 8) -> None:
        self.block_tokens = block_tokens
        self._extent_blocks = extent_blocks
        self._lessor = lessor
        self._extents: list[range] = []
        self._free: list[int] = []

    @property
    def num_leased(self) -> int:
        return sum(len(extent) for extent in self._extents)

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.num_leased - self.num_free

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_tokens)

    def grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """Give the sequence room for `num_tokens` tokens. False: the pool is out, nothing has changed."""
        missing = self.blocks_for(num_tokens) - len(sequence.blocks)
        if missing <= 0:
            return True
        if not self.ensure_free(missing):
            return False
        taken = [self._free.pop() for _ in range(missing)]
        sequence.blocks += taken
        first_slots = np.asarray(taken, dtype=np.int64)[:, None] * self.block_tokens
        new_slots = (first_slots + np.arange(self.block_tokens)).reshape(-1)
        sequence.slots = np.concatenate((sequence.slots, new_slots))
        return True

    def ensure_free(self, num_blocks: int) -> bool:
        """Have `num_blocks` free here, leasing more if needed. False: what was leased in vain went back."""
        num_extents = len(self._extents)
        while len(self._free) < num_blocks:
            missing = num_blocks - len(self._free)
            if not self._lease(max(missing, self._extent_blocks)) and not self._lease_piecewise(missing):
                self._give_back(self._extents[num_extents:])
                return False
        return True

    def _lease(self, num_blocks: int) -> bool:
        extent = self._lessor.lease(num_blocks)
        if extent is None:
            return False
        self._extents.append(extent)
        self._free += reversed(extent)
        return True

    def _lease_piecewise(self, missing: int) -> bool:
        """The pool has no hole of the wished size: take the largest halves that it still has."""
        size = missing
        while size >= 1:
            if self._lease(size):
                return True
            size //= 2
        return False

    def free(self, sequence: Sequence) -> None:
        """Take back all blocks of a sequence. Harmless when it has none."""
        self._free += reversed(sequence.blocks)
        sequence.blocks = []
        sequence.slots = sequence.slots[:0]
        sequence.num_computed = 0

    def give_back_unused(self) -> None:
        """Return the extents in which no block is used."""
        free = set(self._free)
        self._give_back([extent for extent in self._extents if free.issuperset(extent)])

    def _give_back(self, extents: list[range]) -> None:
        """Return extents of which every block is free."""
        gone = {block for extent in extents for block in extent}
        self._free = [block for block in self._free if block not in gone]
        for extent in extents:
            self._extents.remove(extent)
            self._lessor.release(extent)

    def check(self, sequences: list[Sequence]) -> None:
        """Conservation: free + used by `sequences` == leased, nothing twice. Raises AssertionError."""
        held = self._free + [block for sequence in sequences for block in sequence.blocks]
        leased = [block for extent in self._extents for block in extent]
        if sorted(held) != sorted(leased):
            raise AssertionError(
                f"KV blocks do not add up: {len(self._free)} free + {len(held) - len(self._free)} used, "
                f"{len(leased)} leased"
            )
