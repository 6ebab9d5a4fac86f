"""Readers of the loop's news."""

from __future__ import annotations

import asyncio

from scaler.looping.feed import Feed
from scaler.testing import settle


async def test_every_reader_gets_everything_from_its_beginning_on():
    """The second reader came after 1."""
    feed = Feed[int]()
    first = feed.subscribe()
    feed.publish(1)
    second = feed.subscribe()
    feed.publish(2)
    feed.close()
    assert [item async for item in first] == [1, 2]
    assert [item async for item in second] == [2]


async def test_a_slow_reader_loses_the_oldest_and_knows_how_many():
    """Room for 2 of 5: it reads 4 and 5, and has lost 3."""
    feed = Feed[int]()
    reader = feed.subscribe(max_items=2)
    for item in range(1, 6):
        feed.publish(item)
    feed.close()
    assert [item async for item in reader] == [4, 5]
    assert reader.num_lost == 3


async def test_a_reader_that_waits_is_woken():
    """By the next item, and by the end."""
    feed = Feed[int]()
    seen: list[int] = []

    async def read() -> None:
        seen.extend([item async for item in feed.subscribe()])

    task = asyncio.create_task(read())
    await settle()
    feed.publish(7)
    await settle()
    feed.close()
    await asyncio.wait_for(task, 5)
    assert seen == [7]


async def test_a_reader_that_has_gone_is_forgotten():
    """Leaving its block, it takes no more memory; a closed feed takes no new readers."""
    feed = Feed[int]()
    with feed.subscribe() as reader:
        feed.publish(1)
    feed.publish(2)
    assert [item async for item in reader] == [1]
    feed.close()
    assert [item async for item in feed.subscribe()] == []
