"""The books of the KV arena, by property and by the faults that others had."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise, product

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from python_backend.node.errors import ExtentFreedTwice, ExtentUnknown, PoolInconsistent, ReferenceUnknown
from python_backend.node.pool import Pool
from python_backend.node.pool_figures import Refused
from python_backend.node.quota import ModelQuota

A, B = 100, 70
"""Block sizes of the two models: neither divides the other."""


def pool_of(total_bytes: int = 7000, a: ModelQuota | None = None, b: ModelQuota | None = None) -> Pool:
    pool = Pool(total_bytes)
    pool.add_model("a", A, a or ModelQuota())
    pool.add_model("b", B, b or ModelQuota())
    return pool


def publish(pool: Pool, owner: int, block: int, name: str, model: str = "a", tenant: str = "") -> bool:
    return pool.publish(owner, model, tenant, block, name.encode(), name.encode())


def match(pool: Pool, owner: int, *names: str, model: str = "a") -> list[int]:
    digests = [name.encode() for name in names]
    return pool.match(owner, model, digests, digests)


def lease(pool: Pool, owner: int, num_blocks: int, model: str = "a", tenant: str = "") -> int:
    granted = pool.lease(owner, model, tenant, num_blocks)
    assert not isinstance(granted, Refused), granted
    return granted


def test_the_whole_arena_can_be_one_lease() -> None:
    """Regions do not stand in the way of the largest request (rmm#1957)."""
    pool = pool_of()
    assert lease(pool, 1, 70) == 0
    assert isinstance(pool.lease(1, "a", "", 1), Refused)
    pool.release(1, "a", 0, 70)
    assert lease(pool, 1, 100, model="b") == 0
    pool.check()


def test_any_run_of_a_lease_can_be_given_back() -> None:
    """Ends, middle, and runs over two leases that happen to be neighbours."""
    pool = pool_of()
    first = lease(pool, 1, 8)
    pool.release(1, "a", first + 2, 3)
    pool.release(1, "a", first, 2)
    pool.check()
    assert pool.leased_bytes(1) == 3 * A
    pool.release(1, "a", first + 5, 3)
    assert pool.stats().free_bytes == 7000


def test_a_second_release_is_refused_and_changes_nothing() -> None:
    """Whatever the worker believes (LMCache#987)."""
    pool = pool_of()
    first = lease(pool, 1, 4)
    pool.release(1, "a", first, 1)
    with pytest.raises(ExtentFreedTwice):
        pool.release(1, "a", first, 1)
    with pytest.raises(ExtentFreedTwice):
        pool.release(1, "a", first, 4)
    assert pool.leased_bytes(1) == 3 * A
    pool.check()


def test_nobody_releases_or_publishes_what_another_leases() -> None:
    """Owner 2 has no business in owner 1's extent."""
    pool = pool_of()
    first = lease(pool, 1, 4)
    with pytest.raises(ExtentUnknown):
        pool.release(2, "a", first, 1)
    with pytest.raises(ReferenceUnknown):
        publish(pool, 2, first, "x")
    pool.check()


def test_a_published_block_outlives_its_publisher_while_another_reads_it() -> None:
    """The publisher is killed; the reader's block stays where and what it was (vllm#37076)."""
    pool = pool_of()
    first = lease(pool, 1, 2)
    assert publish(pool, 1, first, "x")
    assert match(pool, 2, "x") == [first]
    pool.forget(1)
    pool.check()
    assert pool.stats().published_bytes == A
    for _ in range(200):
        if isinstance(pool.lease(3, "a", "", 1), Refused):
            break
    assert match(pool, 4, "x") == [first]
    pool.check()


def test_an_evicted_block_is_never_found_again() -> None:
    """Its room goes to somebody else, and its hash with it (kvcached#362, vllm#44237)."""
    pool = pool_of()
    first = lease(pool, 1, 1)
    publish(pool, 1, first, "x")
    pool.drop(1, "a", [first])
    assert lease(pool, 2, 70) == 0
    assert match(pool, 3, "x") == []
    pool.check()


def test_a_hit_is_checked_against_the_tokens() -> None:
    """The same digest over other tokens is no hit (vllm#12621)."""
    pool = pool_of()
    publish(pool, 1, lease(pool, 1, 1), "x")
    assert pool.match(2, "a", [b"x"], [b"y"]) == []


def test_the_end_of_a_chain_is_evicted_before_its_start() -> None:
    """Without its start the rest of a chain cannot be found."""
    pool = pool_of()
    first = lease(pool, 1, 3)
    for index, name in enumerate(("x", "y", "z")):
        publish(pool, 1, first + index, name)
    pool.drop(1, "a", [first, first + 1, first + 2])
    for _ in range(68):
        lease(pool, 2, 1)
    assert match(pool, 3, "x", "y", "z") == [first, first + 1]


def test_the_same_content_is_published_once() -> None:
    """The second publisher keeps its own block on lease."""
    pool = pool_of()
    assert publish(pool, 1, lease(pool, 1, 1), "x")
    other = lease(pool, 2, 1)
    assert not publish(pool, 2, other, "x")
    assert pool.leased_bytes(2) == A


def test_a_drop_too_many_is_refused() -> None:
    """A reference is given back once."""
    pool = pool_of()
    first = lease(pool, 1, 1)
    publish(pool, 1, first, "x")
    pool.drop(1, "a", [first])
    with pytest.raises(ReferenceUnknown):
        pool.drop(1, "a", [first])
    pool.check()


def test_a_floor_is_there_when_it_is_wanted() -> None:
    """Model b may take all but a's floor, and a gets all of it."""
    pool = pool_of(a=ModelQuota(floor_bytes=2000))
    refused = pool.lease(1, "b", "", 72)
    assert isinstance(refused, Refused)
    assert "2000 of them are other models' floors" in refused.reason
    lease(pool, 1, refused.largest_blocks, model="b")
    assert lease(pool, 2, 20) >= 0


def test_a_ceiling_says_both_numbers() -> None:
    """A model's, and a tenant's."""
    pool = pool_of(a=ModelQuota(ceiling_bytes=1000, tenant_ceiling_bytes=300))
    refused = pool.lease(1, "a", "acme", 4)
    assert isinstance(refused, Refused)
    assert refused.largest_blocks == 3
    assert "'acme' holds 0 bytes of a, its ceiling is 300" in refused.reason
    lease(pool, 1, 10)
    refused = pool.lease(1, "a", "", 1)
    assert isinstance(refused, Refused)
    assert "a holds 1000 bytes, its ceiling is 1000" in refused.reason


def test_a_match_does_not_eat_into_a_floor() -> None:
    """Cached blocks are free until they are read again, so reading them again is bounded like a lease."""
    pool = pool_of(b=ModelQuota(floor_bytes=6900))
    first = lease(pool, 1, 1)
    publish(pool, 1, first, "x")
    pool.drop(1, "a", [first])
    lease(pool, 2, 1)
    assert match(pool, 3, "x") == []


def test_opposite_tides_use_the_whole_arena_in_turn() -> None:
    """What one model cached by night is the other's by day."""
    pool = pool_of()
    for tide in range(6):
        model = "ab"[tide % 2]
        blocks = []
        while not isinstance(first := pool.lease(tide, model, "", 1), Refused):
            blocks.append(first)
        size = A if model == "a" else B
        assert len(blocks) * size >= 0.9 * 7000
        for block in blocks:
            publish(pool, tide, block, f"{tide}-{block}", model=model)
        pool.forget(tide)
        pool.check()


def cache(pool: Pool, owner: int, model: str, blocks: range, every: int) -> None:
    """Of these leased blocks every so many is published and cached, the others are given back."""
    kept = list(blocks)[::every]
    for block in kept:
        assert publish(pool, owner, block, f"{model}-{block}", model=model)
    pool.forget(owner)


def test_what_lies_free_between_cached_blocks_becomes_usable_to_all() -> None:
    """Every third block of a is cached, so b fits nowhere; `tidy` evicts no more than it must."""
    pool = pool_of(64 * 700)
    firsts = [lease(pool, 1, 1) for _ in range(440)]
    cache(pool, 1, "a", range(firsts[0], firsts[0] + 440), every=3)
    before = pool.stats()
    assert pool.usable_bytes("b") < 0.9 * before.free_bytes
    assert pool.tidy() > 0
    after = pool.stats()
    assert pool.usable_bytes("b") >= 0.9 * after.free_bytes
    assert 0 < after.cached_bytes < before.cached_bytes
    assert pool.tidy() == 0
    pool.check()


def test_the_regions_with_most_holes_are_emptied_first() -> None:
    """The dense half of the cache survives, the sparse half makes the room."""
    pool = pool_of(64 * 700)
    firsts = [lease(pool, 1, 1) for _ in range(440)]
    sparse, dense = range(firsts[0], firsts[0] + 220), range(firsts[0] + 220, firsts[0] + 440)
    for block in [*list(sparse)[::6], *dense]:
        assert publish(pool, 1, block, f"a-{block}")
    pool.forget(1)
    assert pool.tidy() > 0
    assert match(pool, 2, *(f"a-{dense[-1]}",)) == [dense[-1]]
    assert pool.stats().cached_bytes + A >= 210 * A
    pool.check()


def test_one_block_that_is_read_does_not_keep_a_region_from_the_other_model() -> None:
    """All else in the arena is cached, and between the blocks that are read there is room for b."""
    pool = pool_of(64 * 700)
    blocks = []
    while not isinstance(first := pool.lease(1, "a", "", 1), Refused):
        blocks.append(first)
    for block in blocks:
        assert publish(pool, 1, block, str(block))
    read = blocks[::5]
    for block in read:
        assert match(pool, 2, str(block)) == [block]
    pool.forget(1)
    num_leased = 0
    while not isinstance(pool.lease(3, "b", "", 1), Refused):
        num_leased += 1
    assert num_leased * B >= 0.75 * (pool.total_bytes - len(read) * A)
    assert all(match(pool, 4, str(block)) == [block] for block in read)
    pool.check()


def test_memory_that_is_free_in_pieces_is_not_taken_from_the_cache() -> None:
    """The answer says so, and the smaller leases are granted."""
    pool = pool_of()
    for _ in range(35):
        lease(pool, 1, 1)
        lease(pool, 2, 1)
    pool.forget(2)
    publish(pool, 1, 0, "x")
    pool.drop(1, "a", [0])
    refused = pool.lease(3, "a", "", 10)
    assert isinstance(refused, Refused)
    assert refused.is_in_pieces
    assert refused.largest_blocks == 1
    for _ in range(35):
        lease(pool, 3, 1)
    assert match(pool, 4, "x") == [0]


def test_books_that_do_not_add_up_are_counted() -> None:
    """Whoever looks at the figures sees it, too."""
    pool = pool_of()
    lease(pool, 1, 1)
    pool._models["a"].leased_bytes += 1
    with pytest.raises(PoolInconsistent, match="100 bytes on lease, its count says 101"):
        pool.check()
    assert pool.stats().num_failed_checks == 1


class PoolMachine(RuleBasedStateMachine):
    """Three workers of two models do what workers do, in any order."""

    @initialize(floor=st.sampled_from([0, 700]), ceiling=st.sampled_from([0, 2100]))
    def start(self, floor: int, ceiling: int) -> None:
        self.pool = Pool(5000)
        self.pool.add_model("a", A, ModelQuota(floor_bytes=floor))
        self.pool.add_model("b", B, ModelQuota(ceiling_bytes=ceiling, cache_bytes=500))
        self.leased: dict[int, set[int]] = {1: set(), 2: set(), 3: set()}
        self.read: dict[int, list[int]] = {1: [], 2: [], 3: []}
        self.model = {1: "a", 2: "a", 3: "b"}

    @rule(owner=st.sampled_from([1, 2, 3]), n=st.integers(1, 9), tenant=st.sampled_from(["", "t"]))
    def lease(self, owner: int, n: int, tenant: str) -> None:
        first = self.pool.lease(owner, self.model[owner], tenant, n)
        if not isinstance(first, Refused):
            new = set(range(first, first + n))
            in_use = [
                block
                for other in self.leased
                if self.model[other] == self.model[owner]
                for block in (*self.leased[other], *self.read[other])
            ]
            assert not new & set(in_use)
            self.leased[owner] |= new

    @rule(owner=st.sampled_from([1, 2, 3]), data=st.data())
    def release(self, owner: int, data: st.DataObject) -> None:
        if self.leased[owner]:
            block = data.draw(st.sampled_from(sorted(self.leased[owner])))
            self.pool.release(owner, self.model[owner], block, 1)
            self.leased[owner].remove(block)

    @rule(owner=st.sampled_from([1, 2, 3]), data=st.data(), name=st.integers(0, 12))
    def publish(self, owner: int, data: st.DataObject, name: int) -> None:
        if self.leased[owner]:
            block = data.draw(st.sampled_from(sorted(self.leased[owner])))
            if publish(self.pool, owner, block, str(name), self.model[owner]):
                self.leased[owner].remove(block)
                self.read[owner].append(block)

    @rule(owner=st.sampled_from([1, 2, 3]), names=st.lists(st.integers(0, 12), max_size=3))
    def match(self, owner: int, names: list[int]) -> None:
        self.read[owner] += match(self.pool, owner, *map(str, names), model=self.model[owner])

    @rule(owner=st.sampled_from([1, 2, 3]))
    def drop(self, owner: int) -> None:
        self.pool.drop(owner, self.model[owner], self.read[owner])
        self.read[owner] = []

    @rule(owner=st.sampled_from([1, 2, 3]))
    def die(self, owner: int) -> None:
        assert self.pool.forget(owner) == len(self.leased[owner]) * (A if self.model[owner] == "a" else B)
        self.leased[owner], self.read[owner] = set(), []

    @rule()
    def tidy(self) -> None:
        self.pool.tidy()

    @rule(block_bytes=st.sampled_from([B, 30]), floor=st.sampled_from([0, 300]))
    def another_model_comes_or_goes(self, block_bytes: int, floor: int) -> None:
        if "c" in self.pool._models:
            self.pool.remove_model("c")
        else:
            self.pool.add_model("c", block_bytes, ModelQuota(floor_bytes=floor))

    @invariant()
    def what_is_kept_at_each_change_is_what_adding_up_gives(self) -> None:
        """From the list of extents alone: what each model and tenant holds, and what the floors lack."""
        held: Counter[tuple[str, str]] = Counter()
        for extent in self.pool.extents():
            held[extent.model, extent.tenant] += extent.nbytes if extent.state != "cached" else 0
        models = self.pool._models
        of_model = {m: sum(n for (name, _), n in held.items() if name == m) for m in models}
        lacks = {m: max(0, books.quota.floor_bytes - of_model[m]) for m, books in models.items()}
        for model, tenant in product(models, ["", "t"]):
            standing = self.pool._ledger.standing(models[model], tenant)
            assert standing.free_bytes == 5000 - sum(of_model.values())
            assert standing.owed_bytes == sum(lacks.values()) - lacks[model]
            assert standing.held_bytes == of_model[model]
            assert standing.tenant_held_bytes == held[model, tenant]

    @invariant()
    def usable_bytes_are_those_of_the_holes_one_by_one(self) -> None:
        """Holes end at extents and at the edges of regions."""
        regions = [(region.offset, region.end) for region in self.pool._regions._by_offset.values()]
        pieces = [(extent.offset, extent.offset + extent.nbytes) for extent in self.pool.extents()]
        edges = {0, 5000, *(edge for bounds in (*regions, *pieces) for edge in bounds)}
        spans = pairwise(sorted(edges))
        holes = [span for span in spans if not any(start <= span[0] < end for start, end in pieces)]
        for model, books in self.pool._models.items():
            size = books.block_bytes
            usable = sum(max(0, end // size - -(-start // size)) * size for start, end in holes)
            assert self.pool.usable_bytes(model) == usable

    @invariant()
    def the_books_add_up(self) -> None:
        self.pool.check()
        stats = self.pool.stats()
        assert stats.free_bytes + stats.leased_bytes + stats.published_bytes == stats.total_bytes

    def teardown(self) -> None:
        for owner in self.leased:
            self.pool.forget(owner)
        for model in list(self.pool._models):
            self.pool.remove_model(model)
        assert not self.pool._regions._usable
        assert not self.pool._regions._rooms
        assert self.pool.stats().largest_free_bytes == 5000


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPoolMachine = PoolMachine.TestCase
