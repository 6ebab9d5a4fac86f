"""A target that is slow to count, asked by a loop that does not wait."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from scaler.acting.target import ScaleResult
from scaler.acting.unhurried import Unhurried
from scaler.deciding.observation import Counts
from scaler.errors import ModelUnknown


@dataclass
class SlowTarget:
    """Answers when it is told to."""

    looks: list[asyncio.Future[Counts | None]] = field(default_factory=list)

    async def counts(self, model: str) -> Counts | None:
        self.looks.append(asyncio.get_running_loop().create_future())
        return await self.looks[-1]

    async def scale(self, model: str, wanted: int, reason: str) -> ScaleResult:
        return ScaleResult(model, 0, wanted, 0.0)


@dataclass
class Rig:
    slow: SlowTarget = field(default_factory=SlowTarget)
    now_s: float = 0.0

    def __post_init__(self) -> None:
        self.target = Unhurried(self.slow, clock=lambda: self.now_s, wait_s=0)

    async def answer(self, counts: Counts | None) -> None:
        self.slow.looks[-1].set_result(counts)
        for _ in range(3):
            await asyncio.sleep(0)


async def test_a_slow_answer_is_had_at_a_later_look() -> None:
    """One look at a time: asked three times, looked once; then its answer, and the next look begins after it."""
    rig = Rig()
    assert [await rig.target.counts("chat") for _ in range(3)] == [None] * 3
    assert len(rig.slow.looks) == 1
    await rig.answer(Counts(3))
    assert await rig.target.counts("chat") == Counts(3)
    assert await rig.target.counts("chat") == Counts(3)
    assert len(rig.slow.looks) == 2


async def test_the_last_count_stands_for_10_s() -> None:
    """While the next look takes its time; after that nobody can say."""
    rig = Rig()
    await rig.target.counts("chat")
    await rig.answer(Counts(3))
    await rig.target.counts("chat")
    rig.now_s = 10.0
    assert await rig.target.counts("chat") == Counts(3)
    rig.now_s = 10.1
    assert await rig.target.counts("chat") is None


async def test_who_cannot_say_now_has_not_said_what_it_said_before() -> None:
    """3, then an answer of "unknown": unknown. A refusal is handed on."""
    rig = Rig()
    await rig.target.counts("chat")
    await rig.answer(Counts(3))
    await rig.target.counts("chat")
    await rig.target.counts("chat")
    await rig.answer(None)
    assert await rig.target.counts("chat") is None
    await rig.target.counts("chat")
    rig.slow.looks[-1].set_exception(ModelUnknown("no workload is named for it"))
    for _ in range(3):
        await asyncio.sleep(0)
    with pytest.raises(ModelUnknown):
        await rig.target.counts("chat")


async def test_a_loop_that_gives_up_waiting_does_not_end_the_look() -> None:
    """It is cancelled at its deadline; the look goes on, and models do not wait for each other."""
    rig = Rig()
    rig.target = Unhurried(rig.slow, clock=lambda: rig.now_s, wait_s=60)
    asking = asyncio.create_task(rig.target.counts("chat"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait({asking})
    await rig.answer(Counts(3))
    assert await rig.target.counts("chat") == Counts(3)
    assert (await rig.target.scale("embed", 2, "test")).after == 2


async def test_two_that_wait_for_the_same_look_both_have_its_answer() -> None:
    """KEDA asks while the loop does: the second one back found the look cleared away."""
    slow = SlowTarget()
    target = Unhurried(slow, wait_s=5)
    asking = [asyncio.create_task(target.counts("chat")) for _ in range(2)]
    for _ in range(5):
        await asyncio.sleep(0)
    slow.looks[0].set_result(Counts(ready=3))
    assert await asyncio.gather(*asking) == [Counts(ready=3)] * 2
    assert len(slow.looks) == 1
