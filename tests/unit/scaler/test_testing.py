"""The fakes behave as what they stand for."""

from __future__ import annotations

import asyncio

import pytest

from scaler.deciding.observation import Counts
from scaler.errors import Busy
from scaler.testing import FakeClock, FakeTarget, settle


async def test_a_fake_clock_wakes_who_waits_for_a_time_that_has_come():
    """One waits for 2 s, one for 5; after 3 s the first goes on."""
    clock, woken = FakeClock(), []

    async def wait(seconds: float) -> None:
        await clock.until(clock() + seconds)
        woken.append(seconds)

    tasks = [asyncio.create_task(wait(seconds)) for seconds in (2.0, 5.0)]
    await settle()
    clock.advance(3.0)
    await settle()
    assert woken == [2.0]
    clock.advance(3.0)
    await asyncio.gather(*tasks)


async def test_a_fake_target_starts_and_drains_in_fake_time():
    """1→3 in 0.3 s, 3→1 in 1 s; the counts say what is on its way."""
    clock = FakeClock()
    target = FakeTarget(clock, {"chat": 1})
    out = asyncio.create_task(target.scale("chat", 3, ""))
    await settle()
    assert await target.counts("chat") == Counts(1, starting=2)
    clock.advance(0.3)
    assert (await out).after == 3
    back = asyncio.create_task(target.scale("chat", 1, ""))
    await settle()
    assert await target.counts("chat") == Counts(1, draining=2)
    clock.advance(1.0)
    assert (await back).seconds == pytest.approx(1.0)


async def test_a_fake_target_takes_a_drain_back_and_refuses_a_second_change():
    """As the protocol says of the real ones."""
    target = FakeTarget(FakeClock(), {"chat": 3})
    drain = asyncio.create_task(target.scale("chat", 1, ""))
    await settle()
    with pytest.raises(Busy):
        await target.scale("chat", 2, "")
    assert target.num_overlaps == 1
    drain.cancel()
    await asyncio.wait({drain})
    assert await target.counts("chat") == Counts(3)
