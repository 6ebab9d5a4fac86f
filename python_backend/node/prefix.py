"""One model's published prefix blocks: found by hash, verified by tokens, kept while read, then by last use.

A hash chain says what a block holds *and* everything before it, so the hash alone names it; the tokens are compared
all the same (vllm#12621). Whoever publishes or matches a block holds a reference on it; references belong to
connections and go with them. A block without references is cached: it stays until somebody needs its room. Its hash
goes in the same moment, so a recycled block is never found under an old name (kvcached#362, vllm#44237).
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from python_backend.node.errors import PoolInconsistent, ReferenceUnknown


@dataclass(slots=True)
class PublishedBlock:
    offset: int
    """In the arena, bytes."""
    digest: bytes
    tokens: bytes
    tenant: str
    region: int
    """Where it lies: blocks of one region leave a whole region when all of them are evicted."""
    num_references: int = 0
    last_used: int = 0
    """The index's own count of uses, not a clock."""


class PrefixIndex:
    """The books of one model; `offset` names a block."""

    def __init__(self) -> None:
        self._by_digest: dict[bytes, PublishedBlock] = {}
        self._by_offset: dict[int, PublishedBlock] = {}
        self._held: defaultdict[int, Counter[int]] = defaultdict(Counter)
        self._cached: OrderedDict[int, PublishedBlock] = OrderedDict()
        """By offset, least recently used first; and the same once more for each region."""
        self._cached_in: dict[int, OrderedDict[int, PublishedBlock]] = {}
        self._read_by_tenant: Counter[str] = Counter()
        self._published_by_tenant: Counter[str] = Counter()
        self.lookup_blocks = 0
        self.hit_blocks = 0

    @property
    def num_published(self) -> int:
        return len(self._by_offset)

    @property
    def num_read(self) -> int:
        return len(self._by_offset) - len(self._cached)

    def num_read_of(self, tenant: str) -> int:
        """Blocks that this tenant published and that somebody reads now."""
        return self._read_by_tenant[tenant]

    def published_by_tenant(self) -> dict[str, int]:
        """Blocks of each tenant that has any."""
        return {tenant: count for tenant, count in self._published_by_tenant.items() if count}

    def num_published_of(self, tenant: str) -> int:
        return self._published_by_tenant[tenant]

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    def match(
        self, owner: int, digests: Sequence[bytes], tokens: Sequence[bytes], now: int, max_woken: int
    ) -> list[int]:
        """Offsets of the leading blocks that are published, one more reference of `owner` on each. At most
        `max_woken` of them may be cached ones, which count as held from now on."""
        self.lookup_blocks += len(digests)
        found: list[int] = []
        for digest, content in zip(digests, tokens, strict=True):
            block = self._by_digest.get(digest)
            if block is None or block.tokens != content:
                break
            if not block.num_references:
                max_woken -= 1
                if max_woken < 0:
                    break
            self._reference(owner, block, now)
            found.append(block.offset)
        self.hit_blocks += len(found)
        return found

    def contains(self, digest: bytes) -> bool:
        return digest in self._by_digest

    def publish(self, owner: int, block: PublishedBlock, now: int) -> None:
        """Add a block that is not there yet; `owner` holds one reference on it."""
        if block.digest in self._by_digest or block.offset in self._by_offset:
            raise PoolInconsistent(f"the block at {block.offset} is published twice")
        self._by_digest[block.digest] = self._by_offset[block.offset] = block
        self._published_by_tenant[block.tenant] += 1
        self._reference(owner, block, now)

    def drop(self, owner: int, offsets: Iterable[int], now: int) -> None:
        """One reference less on each. Raises ReferenceUnknown; what came before the wrong one is dropped."""
        held = self._held[owner]
        # The deepest first: of a chain that is out of use, the end is evicted before what leads to it.
        for offset in reversed(list(offsets)):
            if not held[offset]:
                raise ReferenceUnknown(
                    f"owner {owner} drops the block at {offset}, but holds no reference on it"
                )
            held[offset] -= 1
            if not held[offset]:
                del held[offset]
            self._dereference(self._by_offset[offset], 1, now)
        if not held:
            del self._held[owner]

    def forget(self, owner: int, now: int) -> None:
        """All references of a connection that is gone. Harmless when repeated."""
        for offset, count in reversed(self._held.pop(owner, {}).items()):
            self._dereference(self._by_offset[offset], count, now)

    def oldest_cached(self) -> PublishedBlock | None:
        """The next to evict; None: every block is being read."""
        return next(iter(self._cached.values()), None)

    def cached(self) -> Iterable[PublishedBlock]:
        """All that could be evicted, least recently used first."""
        return self._cached.values()

    def cached_by_region(self) -> Iterable[tuple[int, OrderedDict[int, PublishedBlock]]]:
        """Every region that has any, with its cached blocks, least recently used first."""
        return self._cached_in.items()

    def blocks(self) -> Iterable[PublishedBlock]:
        return self._by_offset.values()

    def evict(self, offset: int) -> None:
        """Forget a cached block; its bytes are the caller's to free. Raises PoolInconsistent if it is read."""
        if offset not in self._cached:
            raise PoolInconsistent(f"the block at {offset} is evicted, but it is not cached")
        block = self._cached[offset]
        self._uncache(block)
        del self._by_offset[offset]
        del self._by_digest[block.digest]
        self._published_by_tenant[block.tenant] -= 1

    def check(self) -> None:
        """Raises PoolInconsistent."""
        counted: Counter[int] = Counter()
        for held in self._held.values():
            counted.update(held)
        for offset, block in self._by_offset.items():
            if block.num_references != counted[offset]:
                raise PoolInconsistent(
                    f"block at {offset}: {block.num_references} references, its readers hold {counted[offset]}"
                )
            if (offset in self._cached) != (block.num_references == 0):
                raise PoolInconsistent(f"block at {offset}: cached and read at once, or neither")
        if sum(map(len, self._cached_in.values())) != len(self._cached):
            raise PoolInconsistent(f"{len(self._cached)} blocks are cached, their regions know others")
        if len(self._by_digest) != len(self._by_offset) or set(counted) - set(self._by_offset):
            raise PoolInconsistent("the prefix index names blocks that are not there")

    def _reference(self, owner: int, block: PublishedBlock, now: int) -> None:
        self._held[owner][block.offset] += 1
        if not block.num_references:
            self._read_by_tenant[block.tenant] += 1
        block.num_references += 1
        block.last_used = now
        if block.offset in self._cached:
            self._uncache(block)

    def _dereference(self, block: PublishedBlock, count: int, now: int) -> None:
        block.num_references -= count
        block.last_used = now
        if not block.num_references:
            self._cached[block.offset] = block
            self._cached_in.setdefault(block.region, OrderedDict())[block.offset] = block
            self._read_by_tenant[block.tenant] -= 1

    def _uncache(self, block: PublishedBlock) -> None:
        del self._cached[block.offset]
        in_region = self._cached_in[block.region]
        del in_region[block.offset]
        if not in_region:
            del self._cached_in[block.region]
