"""The books of the KV arena: who leases what, which blocks are published, what is free. Bookkeeping only.

Every byte is in one of three states: free, on lease to one connection, or a published prefix block (being read, or
cached: kept until its room is needed). `lease` makes room itself by evicting cached blocks; asking other workers to
give something back is the desk's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from python_backend.node.audit import check_owners
from python_backend.node.errors import ExtentFreedTwice, ExtentUnknown, PoolInconsistent, ReferenceUnknown
from python_backend.node.eviction import emptiest_region, oldest_foreign_region
from python_backend.node.holdings import Holdings, Lease
from python_backend.node.ledger import HighWater, Ledger, ModelBooks
from python_backend.node.pool_figures import ModelStats, PoolExtent, PoolStats, Refused
from python_backend.node.prefix import PublishedBlock
from python_backend.node.quota import ModelQuota
from python_backend.node.regions import Regions

FOREIGN_REGIONS = 4
"""Evictions that even one block may cost: another model's region may lie so that nothing aligned fits."""
MAX_STUCK_SHARE = 0.06
"""Of the free bytes, what a model may be unable to use before `tidy` evicts. The aim is a tenth; with 0.08, two
simulated days of three fell short of it (0.891, 0.899)."""
MAX_HELD_SHARE = 0.4
"""Of a region that `tidy` empties: between more held blocks than this lie no holes worth it."""
STUCK_FLOOR_SHARE = 1 / 32
"""Of the arena: with less free than this, what is stuck is measured against this."""


class Pool:
    """Models are added before they lease; an owner is a connection."""

    def __init__(self, total_bytes: int) -> None:
        self._regions = Regions(total_bytes)
        self._ledger = Ledger(total_bytes)
        self._models = self._ledger.models
        self._holdings = Holdings()
        self._now = 0
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
            self._ledger.add(ModelBooks(model, block_bytes, quota))
            self._regions.follow(block_bytes)

    def remove_model(self, model: str) -> None:
        """Its cached blocks are evicted. Raises PoolInconsistent while anything of it is held."""
        books = self._models.get(model)
        if books is None:
            return
        if books.held_bytes:
            raise PoolInconsistent(f"model {model} goes, but {books.held_bytes} bytes of it are still held")
        for block in list(books.prefixes.cached()):
            self._evict(books, block)
        self._ledger.remove(model)
        if all(other.block_bytes != books.block_bytes for other in self._models.values()):
            self._regions.unfollow(books.block_bytes)

    # --- leases ---

    def lease(self, owner: int, model: str, tenant: str, num_blocks: int) -> int | Refused:
        """The first of `num_blocks` consecutive blocks. Evicts cached blocks, at most as many as are wanted."""
        self._now += 1
        books = self._models[model]
        nbytes = num_blocks * books.block_bytes
        standing = self._ledger.standing(books, tenant)
        allowed = max(0, standing.allowed_bytes())
        if nbytes > allowed:
            return self._refuse(books, allowed, standing.rule())
        offset = self._alloc(books, nbytes)
        if offset is None:
            rule = f"no run of {num_blocks} blocks is free"
            return self._refuse(books, allowed, rule, is_in_pieces=self.usable_bytes(model) >= nbytes)
        self._hold(owner, offset, Lease(model, tenant, nbytes))
        self._ledger.settle(books)
        return offset // books.block_bytes

    def release(self, owner: int, model: str, first_block: int, num_blocks: int) -> None:
        """Any run of blocks that `owner` holds on lease. Raises ExtentUnknown, ExtentFreedTwice; then nothing has
        changed."""
        books = self._models[model]
        start, end = first_block * books.block_bytes, (first_block + num_blocks) * books.block_bytes
        if num_blocks <= 0:
            raise ExtentUnknown(f"owner {owner} releases {num_blocks} blocks")
        extents = self._cut_out(owner, start, end)
        self._now += 1
        for offset in extents:
            self._let_go(owner, offset)
            self._regions.free(offset)
        self._ledger.settle(books)

    def forget(self, owner: int) -> int:
        """Everything that a connection held returns; the bytes on lease that were. Harmless when repeated."""
        returned_bytes = 0
        for offset, _ in self._holdings.of(owner):
            returned_bytes += self._let_go(owner, offset).nbytes
            self._regions.free(offset)
        self._now += 1
        for books in self._models.values():
            books.prefixes.forget(owner, self._now)
            self._ledger.settle(books)
            self._trim_cache(books)
        return returned_bytes

    def leased_bytes(self, owner: int) -> int:
        return sum(lease.nbytes for _, lease in self._holdings.of(owner))

    # --- prefix blocks ---

    def match(self, owner: int, model: str, digests: Sequence[bytes], tokens: Sequence[bytes]) -> list[int]:
        """The leading published blocks, each with one more reference of `owner`."""
        books = self._models[model]
        self._now += 1
        spare_blocks = max(0, self._ledger.standing(books, "").allowed_bytes() // books.block_bytes)
        offsets = books.prefixes.match(owner, digests, tokens, self._now, spare_blocks)
        self._ledger.settle(books)
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
        self._ledger.settle(books)
        self._trim_cache(books)

    def tidy(self) -> int:
        """Evict cached blocks, region by region, until each model can use nearly all that is free; the blocks.

        A hole between cached blocks is of use to their model alone. The regions with the most holes go first: they
        give the most room for the fewest blocks.
        """
        num_evicted = 0
        self._now += 1
        while self._is_stuck() and (victims := emptiest_region(self._models, self._regions, MAX_HELD_SHARE)):
            books, blocks = victims
            for block in blocks:
                self._evict(books, block)
            num_evicted += len(blocks)
        return num_evicted

    # --- what others ask ---

    def usable_bytes(self, model: str) -> int:
        """Of the free bytes, those that the model could lease in single blocks."""
        return self._regions.usable_bytes(self._models[model].block_bytes)

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
            high_water_bytes=self._ledger.high_water_bytes,
            num_failed_checks=self._num_failed_checks,
        )

    def watch_high_water(self) -> HighWater:
        """A mark of the caller's own; close it."""
        return HighWater(self._ledger)

    def limit_bytes(self, model: str) -> int:
        """The most that the model could ever hold: its ceiling, or what the floors of others leave it."""
        return self._ledger.limit_bytes(self._models[model])

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
            for owner, offset, lease in self._holdings.all()
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
            yield from check_owners(self._models, self._holdings, self._regions)
            self._ledger.check()
        except PoolInconsistent:
            self._num_failed_checks += 1
            raise

    # --- within ---

    def _refuse(self, books: ModelBooks, allowed: int, rule: str, is_in_pieces: bool = False) -> Refused:
        books.num_refused += 1
        largest = min(allowed, self._regions.largest_aligned_bytes(books.block_bytes))
        return Refused(largest // books.block_bytes, rule, allowed // books.block_bytes, is_in_pieces)

    def _may_publish(self, books: ModelBooks, tenant: str) -> bool:
        ceiling = books.quota.tenant_ceiling_bytes
        if not ceiling or not tenant:
            return True
        return (books.prefixes.num_published_of(tenant) + 1) * books.block_bytes <= ceiling

    def _alloc(self, books: ModelBooks, nbytes: int) -> int | None:
        model = books.model
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
        foreign = oldest_foreign_region(self._models, self._regions, model, own.last_used if own else None)
        if foreign is not None:
            theirs, blocks = foreign
            for block in blocks:
                self._evict(theirs, block)
            return True
        if own is not None:
            self._evict(books, own)
            return True
        if (rest := emptiest_region(self._models, self._regions)) is not None:
            theirs, blocks = rest
            for block in blocks:
                self._evict(theirs, block)
            return True
        return False

    def _is_stuck(self) -> bool:
        free_bytes = self.total_bytes - self._regions.used_bytes
        may_be_stuck = MAX_STUCK_SHARE * max(free_bytes, STUCK_FLOOR_SHARE * self.total_bytes)
        return any(free_bytes - self.usable_bytes(model) > may_be_stuck for model in self._models)

    def _evict(self, books: ModelBooks, block: PublishedBlock) -> None:
        books.prefixes.evict(block.offset)
        self._regions.free(block.offset)

    def _trim_cache(self, books: ModelBooks) -> None:
        limit = books.quota.cache_bytes
        while limit and books.prefixes.num_cached * books.block_bytes > limit:
            if (block := books.prefixes.oldest_cached()) is not None:
                self._evict(books, block)

    def _check_held(self, owner: int, start: int, end: int) -> None:
        """Raises unless `owner` leases every byte of the range."""
        if self._holdings.is_extent(owner, start, end):
            return
        gap = self._holdings.first_gap(owner, start, end)
        if gap is None:
            return
        if self._regions.size_of(gap) is None and not self._is_used(gap):
            raise ExtentFreedTwice(
                f"owner {owner} releases bytes {start} to {end}, but {gap} is free: twice?"
            )
        raise ExtentUnknown(f"owner {owner} releases bytes {start} to {end}, but does not hold {gap}")

    def _is_used(self, at: int) -> bool:
        return any(piece.offset <= at < piece.offset + piece.nbytes for piece in self.extents())

    def _cut_out(self, owner: int, start: int, end: int) -> list[int]:
        """The extents that are exactly this range, the owner's split at its ends where they must be. Raises as
        `_check_held`."""
        if self._holdings.is_extent(owner, start, end):
            return [start]
        self._check_held(owner, start, end)
        for at in (start, end):
            if (offset := self._holdings.extent_across(owner, at)) is not None:
                self._regions.split(offset, at - offset)
                self._holdings.split(owner, offset, at)
        return self._holdings.extents_within(owner, start, end)

    def _hold(self, owner: int, offset: int, lease: Lease) -> None:
        self._holdings.add(owner, offset, lease)
        books = self._models[lease.model]
        books.leased_bytes += lease.nbytes
        books.leased_by_tenant[lease.tenant] += lease.nbytes

    def _let_go(self, owner: int, offset: int) -> Lease:
        lease = self._holdings.remove(owner, offset)
        books = self._models[lease.model]
        books.leased_bytes -= lease.nbytes
        books.leased_by_tenant[lease.tenant] -= lease.nbytes
        return lease
