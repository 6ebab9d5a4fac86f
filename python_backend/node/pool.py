"""The books of the KV arena: who leases what, which blocks are published, what is free. Bookkeeping only.

Every byte is in one of three states: free, on lease to one connection, or a published prefix block (being read, or
cached: kept until its room is needed). `lease` makes room itself by evicting cached blocks; asking other workers to
give something back is the desk's.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from python_backend.node.errors import ExtentFreedTwice, ExtentUnknown, PoolInconsistent, ReferenceUnknown
from python_backend.node.prefix import PrefixIndex, PublishedBlock
from python_backend.node.quota import Allowance, ModelQuota, allowance
from python_backend.node.regions import Regions

CHECKED_A_STEP = 1024
FOREIGN_REGIONS = 4
MAX_STUCK_SHARE = 0.08
"""Of the free bytes, what a model may be unable to use before `tidy` evicts; a little below the tenth that is the aim."""
MAX_HELD_SHARE = 0.25
"""Of a region that `tidy` empties: between more held blocks than this lie no holes worth it."""
STUCK_FLOOR_SHARE = 1 / 32
"""Of the arena: with less free than this, what is stuck is measured against this."""


@dataclass(frozen=True)
class Refused:
    """No lease: what a smaller request would get, and what stands in the way."""

    largest_blocks: int
    reason: str
    obtainable_blocks: int = 0
    """What smaller requests would get together, at most: what the rules leave."""
    is_in_pieces: bool = False
    """As much as was wanted is free, in smaller extents."""


@dataclass(frozen=True)
class PoolStats:
    total_bytes: int
    leased_bytes: int
    published_bytes: int
    """Prefix blocks, read or cached."""
    cached_bytes: int
    free_bytes: int
    largest_free_bytes: int
    high_water_bytes: int
    """Most bytes ever held (leased or read) at once since the node started."""
    num_failed_checks: int
    """How often the books did not add up."""


@dataclass(frozen=True)
class ModelStats:
    block_bytes: int
    leased_bytes: int
    published_bytes: int
    cached_bytes: int
    usable_blocks: int
    """Blocks that it could lease now, one by one: free ones, and its own cached ones."""
    lookup_blocks: int
    hit_blocks: int
    num_refused: int
    leased_by_tenant: dict[str, int]
    published_by_tenant: dict[str, int]


@dataclass(frozen=True)
class PoolExtent:
    """A piece of the arena that is not free."""

    offset: int
    nbytes: int
    model: str
    tenant: str
    state: str
    """ "leased", "published" (being read) or "cached"."""
    owner: int


@dataclass
class _Lease:
    model: str
    tenant: str
    nbytes: int


@dataclass
class _Holdings:
    """One connection's extents."""

    by_offset: dict[int, _Lease] = field(default_factory=dict)
    offsets: list[int] = field(default_factory=list)
    """Sorted."""


@dataclass
class _Model:
    block_bytes: int
    quota: ModelQuota
    prefixes: PrefixIndex = field(default_factory=PrefixIndex)
    leased_bytes: int = 0
    leased_by_tenant: Counter[str] = field(default_factory=Counter)
    num_refused: int = 0

    @property
    def held_bytes(self) -> int:
        return self.leased_bytes + self.prefixes.num_read * self.block_bytes


class Pool:
    """Models are added before they lease; an owner is a connection."""

    def __init__(self, total_bytes: int) -> None:
        self._regions = Regions(total_bytes)
        self._models: dict[str, _Model] = {}
        self._holdings: defaultdict[int, _Holdings] = defaultdict(_Holdings)
        self._now = 0
        self._high_water_bytes = 0
        self._num_failed_checks = 0

    @property
    def total_bytes(self) -> int:
        return self._regions.total_bytes

    @property
    def num_changes(self) -> int:
        """Who sees the same number twice has missed nothing."""
        return self._now

    def add_model(self, model: str, block_bytes: int, quota: ModelQuota) -> None:
        """Harmless when repeated with the same values."""
        if model not in self._models:
            self._models[model] = _Model(block_bytes, quota)

    def remove_model(self, model: str) -> None:
        """Its cached blocks are evicted. Raises PoolInconsistent while anything of it is held."""
        books = self._models.get(model)
        if books is None:
            return
        if books.held_bytes:
            raise PoolInconsistent(f"model {model} goes, but {books.held_bytes} bytes of it are still held")
        for block in list(books.prefixes.cached()):
            self._evict(books, block)
        del self._models[model]

    # --- leases ---

    def lease(self, owner: int, model: str, tenant: str, num_blocks: int) -> int | Refused:
        """The first of `num_blocks` consecutive blocks. Evicts cached blocks, at most as many as are wanted."""
        self._now += 1
        books = self._models[model]
        nbytes = num_blocks * books.block_bytes
        limit = self._allowance(model, tenant)
        if nbytes > limit.nbytes:
            books.num_refused += 1
            largest = min(limit.nbytes, self._regions.largest_aligned_bytes(model, books.block_bytes))
            return Refused(
                max(0, largest) // books.block_bytes, limit.rule, max(0, limit.nbytes) // books.block_bytes
            )
        offset = self._alloc(model, books, nbytes)
        if offset is None:
            books.num_refused += 1
            largest = self._regions.largest_aligned_bytes(model, books.block_bytes)
            return Refused(
                largest // books.block_bytes,
                f"no run of {num_blocks} blocks is free",
                limit.nbytes // books.block_bytes,
                is_in_pieces=self.usable_bytes(model) >= nbytes,
            )
        self._hold(owner, offset, _Lease(model, tenant, nbytes))
        self._note_high_water()
        return offset // books.block_bytes

    def release(self, owner: int, model: str, first_block: int, num_blocks: int) -> None:
        """Any run of blocks that `owner` holds on lease. Raises ExtentUnknown, ExtentFreedTwice; then nothing has
        changed."""
        block_bytes = self._models[model].block_bytes
        start, end = first_block * block_bytes, (first_block + num_blocks) * block_bytes
        if num_blocks <= 0:
            raise ExtentUnknown(f"owner {owner} releases {num_blocks} blocks")
        self._check_held(owner, start, end)
        self._now += 1
        for offset in self._cut_out(owner, start, end):
            self._let_go(owner, offset)
            self._regions.free(offset)

    def forget(self, owner: int) -> int:
        """Everything that a connection held returns; the bytes on lease that were. Harmless when repeated."""
        holdings = self._holdings.get(owner, _Holdings())
        returned_bytes = 0
        for offset in list(holdings.offsets):
            returned_bytes += self._let_go(owner, offset).nbytes
            self._regions.free(offset)
        self._holdings.pop(owner, None)
        self._now += 1
        for books in self._models.values():
            books.prefixes.forget(owner, self._now)
            self._trim_cache(books)
        return returned_bytes

    def leased_bytes(self, owner: int) -> int:
        holdings = self._holdings.get(owner)
        return sum(lease.nbytes for lease in holdings.by_offset.values()) if holdings else 0

    # --- prefix blocks ---

    def match(self, owner: int, model: str, digests: Sequence[bytes], tokens: Sequence[bytes]) -> list[int]:
        """The leading published blocks, each with one more reference of `owner`."""
        books = self._models[model]
        self._now += 1
        spare_blocks = max(0, self._allowance(model, "").nbytes // books.block_bytes)
        offsets = books.prefixes.match(owner, digests, tokens, self._now, spare_blocks)
        self._note_high_water()
        return [offset // books.block_bytes for offset in offsets]

    def publish(self, owner: int, model: str, tenant: str, block: int, digest: bytes, tokens: bytes) -> bool:
        """The block is the pool's now, `owner` has one reference. False: its content is there already, or the
        tenant's quota is full; it stays on lease. Raises ReferenceUnknown when `owner` does not lease it."""
        books = self._models[model]
        start, end = block * books.block_bytes, (block + 1) * books.block_bytes
        try:
            self._check_held(owner, start, end)
        except (ExtentUnknown, ExtentFreedTwice) as exc:
            raise ReferenceUnknown(f"owner {owner} publishes block {block} of {model}: {exc}") from exc
        if books.prefixes.contains(digest) or not self._may_publish(books, tenant):
            return False
        for offset in self._cut_out(owner, start, end):
            self._let_go(owner, offset)
        self._now += 1
        books.prefixes.publish(
            owner,
            PublishedBlock(start, digest, tokens, tenant, self._regions.start_of_region(start)),
            self._now,
        )
        return True

    def drop(self, owner: int, model: str, blocks: Sequence[int]) -> None:
        """One reference less on each. Raises ReferenceUnknown."""
        books = self._models[model]
        self._now += 1
        books.prefixes.drop(owner, [block * books.block_bytes for block in blocks], self._now)
        self._trim_cache(books)

    def tidy(self) -> int:
        """Evict cached blocks, region by region, until each model can use nearly all that is free; the blocks.

        A hole between cached blocks is of use to their model alone. The regions with the most holes go first: they
        give the most room for the fewest blocks.
        """
        num_evicted = 0
        self._now += 1
        while self._is_stuck() and (victims := self._emptiest_region(MAX_HELD_SHARE)):
            books, blocks = victims
            for block in blocks:
                self._evict(books, block)
            num_evicted += len(blocks)
        return num_evicted

    # --- what others ask ---

    def usable_bytes(self, model: str) -> int:
        """Of the free bytes, those that the model could lease in single blocks."""
        return self._regions.usable_bytes(model, self._models[model].block_bytes)

    def stats(self) -> PoolStats:
        published = sum(b.prefixes.num_published * b.block_bytes for b in self._models.values())
        used = self._regions.used_bytes
        return PoolStats(
            total_bytes=self.total_bytes,
            leased_bytes=used - published,
            published_bytes=published,
            cached_bytes=sum(b.prefixes.num_cached * b.block_bytes for b in self._models.values()),
            free_bytes=self.total_bytes - used,
            largest_free_bytes=self._regions.largest_free_bytes,
            high_water_bytes=self._high_water_bytes,
            num_failed_checks=self._num_failed_checks,
        )

    def model_stats(self, model: str) -> ModelStats | None:
        """None: the model has no KV cache here."""
        books = self._models.get(model)
        if books is None:
            return None
        return ModelStats(
            block_bytes=books.block_bytes,
            leased_bytes=books.leased_bytes,
            published_bytes=books.prefixes.num_published * books.block_bytes,
            cached_bytes=books.prefixes.num_cached * books.block_bytes,
            usable_blocks=self.usable_bytes(model) // books.block_bytes + books.prefixes.num_cached,
            lookup_blocks=books.prefixes.lookup_blocks,
            hit_blocks=books.prefixes.hit_blocks,
            num_refused=books.num_refused,
            leased_by_tenant={tenant: n for tenant, n in books.leased_by_tenant.items() if n},
            published_by_tenant={
                tenant: n * books.block_bytes for tenant, n in books.prefixes.published_by_tenant().items()
            },
        )

    def extents(self) -> list[PoolExtent]:
        """All that is not free, in order."""
        pieces = [
            PoolExtent(offset, lease.nbytes, lease.model, lease.tenant, "leased", owner)
            for owner, holdings in self._holdings.items()
            for offset, lease in holdings.by_offset.items()
        ]
        for model, books in self._models.items():
            pieces += [
                PoolExtent(
                    block.offset,
                    books.block_bytes,
                    model,
                    block.tenant,
                    "published" if block.num_references else "cached",
                    0,
                )
                for block in books.prefixes.blocks()
            ]
        return sorted(pieces, key=lambda piece: piece.offset)

    def check(self) -> None:
        """Raises PoolInconsistent unless free + leased + published == total and every byte has one owner."""
        for _ in self.check_in_steps():
            pass

    def check_in_steps(self) -> Iterator[None]:
        """The same, a few milliseconds a step. Whoever lets anything change between two steps has to begin anew."""
        try:
            yield from self._regions.check_in_steps()
            for books in self._models.values():
                books.prefixes.check()
                yield
            yield from self._check_owners()
        except PoolInconsistent:
            self._num_failed_checks += 1
            raise

    def _check_owners(self) -> Iterator[None]:
        """Each extent that the arena gave is one lease's or one published block's, and the counts are right."""
        owned: dict[int, int] = {}
        leased: Counter[str] = Counter()
        for model, offset, nbytes, is_leased in self._owned():
            if offset in owned or self._regions.size_of(offset) != nbytes:
                raise PoolInconsistent(f"{model} has {nbytes} bytes at {offset}, the arena gave otherwise")
            owned[offset] = nbytes
            leased[model] += nbytes if is_leased else 0
            if len(owned) % CHECKED_A_STEP == 0:
                yield
        if sum(owned.values()) != self._regions.used_bytes:
            raise PoolInconsistent(
                f"{sum(owned.values())} bytes have owners, the arena gave {self._regions.used_bytes}"
            )
        for model, books in self._models.items():
            if books.leased_bytes != leased[model] or sum(books.leased_by_tenant.values()) != leased[model]:
                raise PoolInconsistent(
                    f"{model}: {leased[model]} bytes on lease, its count says {books.leased_bytes}"
                )

    def _owned(self) -> Iterator[tuple[str, int, int, bool]]:
        """Model, offset, bytes, and whether it is a lease."""
        for holdings in self._holdings.values():
            for offset, lease in holdings.by_offset.items():
                yield lease.model, offset, lease.nbytes, True
        for model, books in self._models.items():
            for block in books.prefixes.blocks():
                yield model, block.offset, books.block_bytes, False

    # --- within ---

    def _allowance(self, model: str, tenant: str) -> Allowance:
        books = self._models[model]
        held_by_tenant = books.leased_by_tenant[tenant] + (
            books.prefixes.num_read_of(tenant) * books.block_bytes
        )
        return allowance(
            model,
            tenant,
            {name: b.quota for name, b in self._models.items()},
            {name: b.held_bytes for name, b in self._models.items()},
            {(model, tenant): held_by_tenant},
            self.total_bytes,
        )

    def _may_publish(self, books: _Model, tenant: str) -> bool:
        ceiling = books.quota.tenant_ceiling_bytes
        if not ceiling or not tenant:
            return True
        return (books.prefixes.num_published_of(tenant) + 1) * books.block_bytes <= ceiling

    def _alloc(self, model: str, books: _Model, nbytes: int) -> int | None:
        offset = self._regions.alloc(model, nbytes, books.block_bytes)
        if offset is not None or (nbytes > books.block_bytes and self.usable_bytes(model) >= nbytes):
            return offset  # enough is free, though in pieces: nothing is evicted before that is used
        # Scattered blocks of its own make no run: as many as were wanted, and no more. Another model's region may
        # lie so that nothing aligned fits: then the next one.
        for _ in range(max(nbytes // books.block_bytes, FOREIGN_REGIONS)):
            if offset is not None or not self._evict_oldest(model):
                break
            offset = self._regions.alloc(model, nbytes, books.block_bytes)
        return offset

    def _evict_oldest(self, model: str) -> bool:
        """Make room for `model`: its own oldest cached block, or another's region if older. False: nothing is
        cached."""
        books = self._models[model]
        own = books.prefixes.oldest_cached()
        foreign = self._oldest_foreign_region(model, own.last_used if own else None)
        if foreign is not None:
            theirs, blocks = foreign
            for block in blocks:
                self._evict(theirs, block)
            return True
        if own is not None:
            self._evict(books, own)
            return True
        if (rest := self._emptiest_region()) is not None:
            theirs, blocks = rest
            for block in blocks:
                self._evict(theirs, block)
            return True
        return False

    def _oldest_foreign_region(
        self, model: str, older_than: int | None
    ) -> tuple[_Model, list[PublishedBlock]] | None:
        """Another model's region in which everything is cached and was last used before `older_than`."""
        best: tuple[int, _Model, list[PublishedBlock]] | None = None
        for name, books in self._models.items():
            if name == model:
                continue
            for region, cached in books.prefixes.cached_by_region():
                if len(cached) < self._regions.num_extents(region):
                    continue
                last_used = next(reversed(cached.values())).last_used
                if (older_than is None or last_used < older_than) and (best is None or last_used < best[0]):
                    best = (last_used, books, list(cached.values()))
        return None if best is None else best[1:]

    def _is_stuck(self) -> bool:
        free_bytes = self.total_bytes - self._regions.used_bytes
        may_be_stuck = MAX_STUCK_SHARE * max(free_bytes, STUCK_FLOOR_SHARE * self.total_bytes)
        return any(free_bytes - self.usable_bytes(model) > may_be_stuck for model in self._models)

    def _emptiest_region(self, max_held_share: float = 1.0) -> tuple[_Model, list[PublishedBlock]] | None:
        """The cached blocks of the region in which the fewest bytes are held, and of those the most are free; at
        most this share of it may be held."""
        emptiest: tuple[int, int, _Model, list[PublishedBlock]] | None = None
        for books in self._models.values():
            for region, cached in books.prefixes.cached_by_region():
                free_bytes = self._regions.free_bytes_in(region)
                unheld_bytes = free_bytes + len(cached) * books.block_bytes
                size = self._regions.size_of_region(region)
                if unheld_bytes < (1 - max_held_share) * size:
                    continue
                if emptiest is None or (unheld_bytes, free_bytes) > emptiest[:2]:
                    emptiest = (unheld_bytes, free_bytes, books, list(cached.values()))
        return None if emptiest is None else emptiest[2:]

    def _evict(self, books: _Model, block: PublishedBlock) -> None:
        books.prefixes.evict(block.offset)
        self._regions.free(block.offset)

    def _trim_cache(self, books: _Model) -> None:
        limit = books.quota.cache_bytes
        while limit and books.prefixes.num_cached * books.block_bytes > limit:
            if (block := books.prefixes.oldest_cached()) is not None:
                self._evict(books, block)

    def _check_held(self, owner: int, start: int, end: int) -> None:
        """Raises unless `owner` leases every byte of the range."""
        at = start
        for offset, lease in self._held_from(owner, start):
            if offset > at or at >= end:
                break
            at = offset + lease.nbytes
        if at >= end:
            return
        if self._regions.size_of(at) is None and not self._is_used(at):
            raise ExtentFreedTwice(f"owner {owner} releases bytes {start} to {end}, but {at} is free: twice?")
        raise ExtentUnknown(f"owner {owner} releases bytes {start} to {end}, but does not hold {at}")

    def _is_used(self, at: int) -> bool:
        return any(piece.offset <= at < piece.offset + piece.nbytes for piece in self.extents())

    def _held_from(self, owner: int, start: int) -> Iterator[tuple[int, _Lease]]:
        """The owner's extents from the one that contains `start` on."""
        holdings = self._holdings.get(owner)
        if holdings is None:
            return
        index = max(0, bisect_right(holdings.offsets, start) - 1)
        for offset in holdings.offsets[index:]:
            if offset + holdings.by_offset[offset].nbytes > start:
                yield offset, holdings.by_offset[offset]

    def _cut_out(self, owner: int, start: int, end: int) -> list[int]:
        """Split the owner's extents at both ends of a range that it holds; the extents inside."""
        for at in (start, end):
            for offset, lease in list(self._held_from(owner, at)):
                if offset < at < offset + lease.nbytes:
                    self._split(owner, offset, at)
                break
        return [offset for offset, _ in self._held_from(owner, start) if start <= offset < end]

    def _split(self, owner: int, offset: int, at: int) -> None:
        holdings = self._holdings[owner]
        lease = holdings.by_offset[offset]
        self._regions.split(offset, at - offset)
        rest = _Lease(lease.model, lease.tenant, offset + lease.nbytes - at)
        lease.nbytes = at - offset
        holdings.by_offset[at] = rest
        insort(holdings.offsets, at)

    def _hold(self, owner: int, offset: int, lease: _Lease) -> None:
        holdings = self._holdings[owner]
        holdings.by_offset[offset] = lease
        insort(holdings.offsets, offset)
        books = self._models[lease.model]
        books.leased_bytes += lease.nbytes
        books.leased_by_tenant[lease.tenant] += lease.nbytes

    def _let_go(self, owner: int, offset: int) -> _Lease:
        holdings = self._holdings[owner]
        lease = holdings.by_offset.pop(offset)
        holdings.offsets.remove(offset)
        if not holdings.offsets:
            del self._holdings[owner]
        books = self._models[lease.model]
        books.leased_bytes -= lease.nbytes
        books.leased_by_tenant[lease.tenant] -= lease.nbytes
        return lease

    def _note_high_water(self) -> None:
        held = sum(books.held_bytes for books in self._models.values())
        self._high_water_bytes = max(self._high_water_bytes, held)
