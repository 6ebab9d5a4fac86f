"""Calls of a saturated service."""

from __future__ import annotations

import asyncio

import pytest

from gateway.errors import ServiceSaturated
from gateway.routes import Queue
from gateway.saturation import FORGET_S, Saturation, WaitingRoom


async def test_calls_wait_until_there_is_room_again() -> None:
    """Three wait, and all go on."""
    full = [True]
    room = WaitingRoom()
    waiting = [asyncio.ensure_future(room.wait("chat", Queue(), lambda: full[0])) for _ in range(3)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    full[0] = False
    await asyncio.gather(*waiting)


async def test_past_its_bounds_a_call_is_refused_with_the_numbers() -> None:
    """No time to wait, and nobody may wait; a service that is not saturated lets everybody through."""
    room = WaitingRoom()
    with pytest.raises(ServiceSaturated, match="still saturated after 0 s"):
        await room.wait("chat", Queue(max_wait_s=0), lambda: True)
    with pytest.raises(ServiceSaturated, match="0 calls wait already"):
        await room.wait("chat", Queue(max_waiting=0), lambda: True)
    await room.wait("chat", Queue(max_waiting=0), lambda: False)


def test_a_scaler_that_fell_silent_turns_nobody_away() -> None:
    """What it said is good for ten seconds."""
    now = [0.0]
    saturation = Saturation(lambda: now[0])
    saturation.tell({"chat"})
    assert saturation.is_saturated("chat")
    assert not saturation.is_saturated("embed")
    now[0] = FORGET_S + 1
    assert not saturation.is_saturated("chat")
