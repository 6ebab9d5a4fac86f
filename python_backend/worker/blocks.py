"""The worker's KV blocks: which are free, which are a sequence's own, which are shared. Bookkeeping only.

Blocks come from the node on lease, on a tenant's account, and go back the same way, in any runs. A block that was
published belongs to the pool; this worker reads it by a reference, like every other reader. A slot is one token's
place: `slot = block * block_tokens + offset`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from typing import Protocol

import numpy as np

from python_backend.worker.prefix import PrefixIdentity, extend_chain, token_bytes
from python_backend.worker.sequence import Sequence


class Lessor(Protocol):
    """Where blocks come from: the node's socket, or a fake."""

    def lease(self, num_blocks: int, tenant: str) -> range | int:
        """Contiguous block ids, as many as asked; or how many could be had in smaller extents, at most."""
        ...

    def release(self, blocks: range) -> None:
        """Give back any run of leased blocks."""
        ...

    def match(self, digests: SequenceOf[bytes], tokens: bytes) -> list[int]:
        """The leading published blocks, one reference on each."""
        ...

    def publish(
        self, blocks: SequenceOf[int], digests: SequenceOf[bytes], tokens: bytes, tenant: str
    ) -> list[bool]:
        """Which of the leased blocks are the pool's now, with one reference on each."""
        ...

    def drop(self, blocks: SequenceOf[int]) -> None:
        """Give back one reference on each."""
        ...


class Memory(Protocol):
    """What of the arena is in reach (mapping.KVMapping), by runs of blocks."""

    def open_private(self, blocks: range) -> None: ...

    def open_shared(self, blocks: range) -> None: ...

    def close(self, blocks: range) -> None: ...


class OwnMemory:
    """Nothing to open or close: memory of this process alone, or of a device without page protection."""

    def open_private(self, blocks: range) -> None:
        pass

    def open_shared(self, blocks: range) -> None:
        pass

    def close(self, blocks: range) -> None:
        pass


class BlockPool:
    """Every leased block is either free here or in exactly one sequence; a shared one may be in many.

    Without an `identity` nothing is matched or published.
    """

    def __init__(
        self,
        lessor: Lessor,
        block_tokens: int,
        extent_blocks: int = 8,
        memory: Memory | None = None,
        identity: PrefixIdentity | None = None,
    ) -> None:
        self.block_tokens = block_tokens
        self._extent_blocks = extent_blocks
        self._lessor = lessor
        self._memory = memory or OwnMemory()
        self._identity = identity
        self._free: defaultdict[str, list[int]] = defaultdict(list)
        self._tenant_of: dict[int, str] = {}
        self._shared: Counter[int] = Counter()

    @property
    def num_leased(self) -> int:
        return len(self._tenant_of)

    @property
    def num_free(self) -> int:
        return sum(map(len, self._free.values()))

    @property
    def num_used(self) -> int:
        """In sequences: own and shared ones."""
        return self.num_leased - self.num_free + len(self._shared)

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_tokens)

    # --- room ---

    def grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """Give the sequence room for `num_tokens` tokens. False: the pool is out, nothing has changed."""
        missing = self.blocks_for(num_tokens) - len(sequence.blocks)
        if missing <= 0:
            return True
        if not self.ensure_free(missing, sequence.tenant):
            return False
        free = self._free[sequence.tenant]
        self._append(sequence, [free.pop() for _ in range(missing)])
        return True

    def ensure_free(self, num_blocks: int, tenant: str = "") -> bool:
        """Have `num_blocks` free here, leasing more if needed. False: at most, free blocks of others went back."""
        missing = num_blocks - len(self._free[tenant])
        extents = self._lease(missing, tenant)
        if extents is None and self.num_free > len(self._free[tenant]):
            # What is free on another tenant's account becomes this one's through the pool alone.
            self.give_back_unused(but=tenant)
            extents = self._lease(missing, tenant)
        for extent in extents or ():
            self._memory.open_private(extent)
            self._tenant_of.update(dict.fromkeys(extent, tenant))
            self._free[tenant] += reversed(extent)
        return extents is not None

    def free(self, sequence: Sequence) -> None:
        """Take back all blocks of a sequence. Harmless when it has none."""
        shared = [block for block in sequence.blocks if block in self._shared]
        own = [block for block in sequence.blocks if block not in self._shared]
        self._free[sequence.tenant] += reversed(own)
        self._drop(shared)
        sequence.blocks = []
        sequence.slots = sequence.slots[:0]
        sequence.num_computed = sequence.num_published = 0

    def give_back_unused(self, keep: int = 0, but: str | None = None) -> None:
        """Return the free blocks but for `keep`, the longest runs first; none of the tenant `but`."""
        runs = [
            (run, tenant) for tenant, free in self._free.items() if tenant != but for run in runs_of(free)
        ]
        surplus = sum(len(run) for run, _ in runs) - keep
        for run, tenant in sorted(runs, key=lambda each: len(each[0]), reverse=True):
            if surplus <= 0:
                break
            self._give_back(run[:surplus], tenant)
            surplus -= len(run)
        for tenant in [tenant for tenant, free in self._free.items() if not free]:
            del self._free[tenant]

    # --- prefixes ---

    def match(self, sequence: Sequence) -> None:
        """Start a sequence that has no blocks with those that are published, all but its newest token at most."""
        if self._identity is None or sequence.blocks:
            return
        self._extend_chain(sequence)
        longest = (sequence.num_tokens - 1) // self.block_tokens
        if not longest:
            return
        tokens = token_bytes(sequence.tokens[: longest * self.block_tokens])
        found = self._lessor.match(sequence.chain[:longest], tokens)
        if not found:
            return
        self._open_shared(found)
        self._append(sequence, found)
        sequence.num_published = len(found)
        sequence.num_computed = len(found) * self.block_tokens

    def publish(self, sequences: Iterable[Sequence]) -> None:
        """Offer the blocks that this step has filled."""
        if self._identity is None:
            return
        by_tenant: defaultdict[str, list[tuple[int, bytes, bytes]]] = defaultdict(list)
        for sequence in sequences:
            full = sequence.num_computed // self.block_tokens
            if full > sequence.num_published:
                by_tenant[sequence.tenant] += self._offers(sequence, full)
        for tenant, offers in by_tenant.items():
            blocks, digests, contents = zip(*offers, strict=True)
            accepted = self._lessor.publish(blocks, digests, b"".join(contents), tenant)
            taken = [block for block, is_taken in zip(blocks, accepted, strict=True) if is_taken]
            for block in taken:
                del self._tenant_of[block]
            self._open_shared(taken)

    def _offers(self, sequence: Sequence, full: int) -> list[tuple[int, bytes, bytes]]:
        self._extend_chain(sequence)
        size = self.block_tokens
        offers = [
            (
                sequence.blocks[index],
                sequence.chain[index],
                token_bytes(sequence.tokens[index * size : (index + 1) * size]),
            )
            for index in range(sequence.num_published, full)
        ]
        sequence.num_published = full
        return offers

    def _extend_chain(self, sequence: Sequence) -> None:
        if self._identity is not None:
            root = self._identity.root(sequence.tenant) if not sequence.chain else b""
            extend_chain(sequence.chain, root, sequence.tokens, self.block_tokens)

    # --- within ---

    def _append(self, sequence: Sequence, blocks: list[int]) -> None:
        sequence.blocks += blocks
        first_slots = np.asarray(blocks, dtype=np.int64)[:, None] * self.block_tokens
        new_slots = (first_slots + np.arange(self.block_tokens)).reshape(-1)
        sequence.slots = np.concatenate((sequence.slots, new_slots))

    def _lease(self, missing: int, tenant: str) -> list[range] | None:
        """Extents of at least `missing` blocks together, of what sizes there are. None: there is not so much."""
        extents: list[range] = []
        size = max(missing, self._extent_blocks)
        while missing > 0:
            answer = self._lessor.lease(size, tenant)
            if isinstance(answer, range):
                extents.append(answer)
                missing -= len(answer)
                size = min(size, missing)
            elif answer < missing or size == 1:
                for extent in extents:
                    self._lessor.release(extent)
                return None
            else:
                size = missing if size > missing else size // 2
        return extents

    def _give_back(self, run: range, tenant: str) -> None:
        """`run`: free blocks."""
        gone = set(run)
        self._free[tenant] = [block for block in self._free[tenant] if block not in gone]
        for block in run:
            del self._tenant_of[block]
        self._memory.close(run)
        self._lessor.release(run)

    def _open_shared(self, blocks: list[int]) -> None:
        for run in runs_of(block for block in blocks if block not in self._shared):
            self._memory.open_shared(run)
        self._shared.update(blocks)

    def _drop(self, blocks: list[int]) -> None:
        if not blocks:
            return
        self._shared.subtract(blocks)
        unread = [block for block in set(blocks) if not self._shared[block]]
        for block in unread:
            del self._shared[block]
        for run in runs_of(unread):
            self._memory.close(run)
        self._lessor.drop(blocks)

    def check(self, sequences: list[Sequence]) -> None:
        """Conservation: free + used by `sequences` == leased, nothing twice; references are what sequences read.
        Raises AssertionError."""
        in_use = [block for sequence in sequences for block in sequence.blocks]
        own = [block for block in in_use if block not in self._shared]
        shared = Counter(block for block in in_use if block in self._shared)
        held = [block for free in self._free.values() for block in free] + own
        if sorted(held) != sorted(self._tenant_of):
            raise AssertionError(
                f"KV blocks do not add up: {self.num_free} free + {len(own)} used, {self.num_leased} leased"
            )
        if shared != self._shared:
            raise AssertionError(f"{len(self._shared)} shared blocks are held, {len(shared)} are in use")


def runs_of(blocks: Iterable[int]) -> list[range]:
    """Blocks as contiguous runs, in order."""
    runs: list[range] = []
    for block in sorted(blocks):
        if runs and runs[-1].stop == block:
            runs[-1] = range(runs[-1].start, block + 1)
        else:
            runs.append(range(block, block + 1))
    return runs
