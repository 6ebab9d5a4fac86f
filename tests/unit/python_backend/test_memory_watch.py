"""What a reader of the pool's memory sees between two of its samples."""

from __future__ import annotations

from python_backend.node.memory_watch import sample_of
from python_backend.node.pool import Pool
from python_backend.node.quota import ModelQuota


def pool_with_two_models() -> Pool:
    pool = Pool(1000)
    pool.add_model("a", 100, ModelQuota(floor_bytes=300))
    pool.add_model("b", 50, ModelQuota(ceiling_bytes=400))
    return pool


def lease(pool: Pool, model: str, num_blocks: int) -> int:
    first = pool.lease(1, model, "", num_blocks)
    assert isinstance(first, int)
    return first


def test_a_peak_between_two_samples_is_in_the_second_and_gone_from_the_third():
    """7 of 10 blocks for no time at all."""
    pool = pool_with_two_models()
    mark = pool.watch_high_water()
    sample_of(pool, mark, ["a"], [], 0.0)
    first = lease(pool, "a", 7)
    pool.release(1, "a", first, 7)
    seen = [sample_of(pool, mark, ["a"], [], now) for now in (1.0, 2.0)]
    assert [(s.held_bytes, s.high_water_bytes) for s in seen] == [(0, 700), (0, 0)]
    assert [s.models[0].high_water_bytes for s in seen] == [700, 0]


def test_a_reader_takes_no_peak_from_another():
    """The second one looks after the first has looked."""
    pool = pool_with_two_models()
    marks = [pool.watch_high_water(), pool.watch_high_water()]
    pool.release(1, "a", lease(pool, "a", 4), 4)
    assert [mark.take()[0] for mark in marks] == [400, 400]


def test_what_is_still_held_is_the_next_high_water():
    """Nothing has changed since, so the mark is what is held."""
    pool = pool_with_two_models()
    mark = pool.watch_high_water()
    lease(pool, "a", 2)
    assert [mark.take() for _ in range(2)] == [(200, {"a": 200, "b": 0})] * 2


def test_peaks_of_two_models_at_different_moments_do_not_add_up():
    """a had 300, then b had 100: together never more than 300."""
    pool = pool_with_two_models()
    mark = pool.watch_high_water()
    pool.release(1, "a", lease(pool, "a", 3), 3)
    pool.release(1, "b", lease(pool, "b", 2), 2)
    assert mark.take() == (300, {"a": 300, "b": 100})


def test_a_published_block_counts_while_it_is_read_and_not_when_it_is_cached():
    """Held is what nobody else can have."""
    pool = pool_with_two_models()
    mark = pool.watch_high_water()
    block = lease(pool, "a", 1)
    pool.publish(1, "a", "", block, b"digest", b"tokens")
    pool.drop(1, "a", [block])
    mark.take()
    sample = sample_of(pool, mark, ["a"], [], 0.0)
    assert (sample.high_water_bytes, sample.cached_bytes) == (0, 100)


def test_a_models_limit_is_its_ceiling_or_what_the_floors_of_others_leave():
    """a may have all 1000; b is kept to 400, and out of a's 300 without a ceiling."""
    pool = pool_with_two_models()
    pool.add_model("c", 10, ModelQuota())
    assert [pool.limit_bytes(model) for model in "abc"] == [1000, 400, 700]


def test_a_closed_mark_is_noted_no_more():
    """A stream that ended costs a lease nothing."""
    pool = pool_with_two_models()
    mark = pool.watch_high_water()
    mark.close()
    lease(pool, "a", 5)
    assert mark.take()[0] == 0
