"""What goes beyond a full node, and how KEDA hears of it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.acting.handover import Handover, Split, split
from scaler.acting.keda_target import KedaTarget
from scaler.acting.target import ScaleResult
from scaler.deciding.observation import Counts
from scaler.errors import CountsUnknown, DrainTimeout, ScaleError, WantedUnknown

COUNT = st.integers(0, 50)


@pytest.mark.parametrize(
    ("wanted", "here", "beyond", "room", "parts"),
    [
        (4, 2, 0, 6, Split(4, 0)),
        (9, 6, 0, 2, Split(8, 1)),
        (9, 8, 0, 0, Split(8, 1)),
        (9, 2, 0, None, Split(9, 0)),
        (10, 8, 1, 3, Split(9, 1)),
        (8, 8, 2, 0, Split(8, 0)),
        (6, 8, 1, 0, Split(6, 0)),
        (9, 6, 3, 4, Split(6, 3)),
        (0, 4, 2, 0, Split(0, 0)),
    ],
    ids=[
        "fits",
        "fills up",
        "full",
        "room unknown",
        "room is back",
        "beyond first",
        "then here",
        "as it is",
        "zero",
    ],
)
def test_the_node_fills_first_and_empties_last(
    wanted: int, here: int, beyond: int, room: int | None, parts: Split
) -> None:
    """Room that is back is used by the next scale-out; nothing moves for its sake alone."""
    assert split(wanted, here, beyond, room) == parts


@given(wanted=COUNT, here=COUNT, beyond=COUNT, room=st.none() | COUNT)
def test_a_split_adds_up_and_goes_one_way(wanted: int, here: int, beyond: int, room: int | None) -> None:
    """No part is negative or over its room, and no instance is started while another is removed."""
    parts = split(wanted, here, beyond, room)
    assert parts.here + parts.beyond == wanted
    assert min(parts.here, parts.beyond) >= 0
    assert room is None or parts.here <= here + room
    assert (parts.here - here) * (parts.beyond - beyond) >= 0


@dataclass
class FakeTarget:
    found: Counts | None
    error: ScaleError | None = None
    asked: list[int] = field(default_factory=list)
    room: int | None = None
    num_turns: int = 0
    """How long a change takes."""

    async def counts(self, model: str) -> Counts | None:
        return self.found

    async def scale(self, model: str, wanted: int, reason: str) -> ScaleResult:
        self.asked.append(wanted)
        if self.error:
            raise self.error
        for _ in range(self.num_turns):
            await asyncio.sleep(0)
        before, self.found = self.found, Counts(wanted, room=self.room)
        return ScaleResult(model, before.total if before else 0, wanted, float(wanted))


async def test_counts_are_those_of_both_with_room_without_end() -> None:
    """8 here with no room and 3 beyond, 1 of them starting: the decider may want more."""
    both = Handover(FakeTarget(Counts(8, room=0)), FakeTarget(Counts(2, starting=1)))
    assert await both.counts("chat") == Counts(10, starting=1, room=None)


async def test_only_the_part_that_changes_is_asked() -> None:
    """8 → 10 on a full node: the node hears nothing; then back to 7: both do."""
    here, beyond = FakeTarget(Counts(8, room=0)), FakeTarget(Counts(0))
    both = Handover(here, beyond)
    result = await both.scale("chat", 10, "test")
    assert (here.asked, beyond.asked) == ([], [2])
    assert (result.before, result.after, result.detail) == (8, 10, "here 8→8, beyond 0→2")
    result = await both.scale("chat", 7, "test")
    assert (here.asked, beyond.asked) == ([7], [2, 0])
    assert (result.before, result.after, result.seconds) == (10, 7, 7.0)


async def test_an_outage_beyond_does_not_stop_scaling_here() -> None:
    """Its last known 2 stand, and the node's room is all there is. Never known: nobody can say."""
    here, beyond = FakeTarget(Counts(4, room=4), room=0), FakeTarget(Counts(2))
    both = Handover(here, beyond)
    await both.counts("chat")
    beyond.found = None
    assert await both.counts("chat") == Counts(6, room=4)
    await both.scale("chat", 10, "test")
    assert (here.asked, beyond.asked) == ([8], [])
    blind = Handover(FakeTarget(Counts(4)), FakeTarget(None))
    assert await blind.counts("chat") is None
    with pytest.raises(CountsUnknown, match="'chat' cannot be counted beyond this node now"):
        await blind.scale("chat", 6, "test")


async def test_a_node_that_cannot_be_counted_is_not_empty() -> None:
    """0 + 2 would send everything beyond."""
    blind = Handover(FakeTarget(None), FakeTarget(Counts(2)))
    assert await blind.counts("chat") is None
    with pytest.raises(CountsUnknown, match="'chat' cannot be counted here now"):
        await blind.scale("chat", 6, "test")


async def test_a_node_can_be_full_by_decree() -> None:
    """max_here 4: of 9 wanted, 4 here, whatever would fit; the other model has all its room."""
    here, beyond = FakeTarget(Counts(2, room=50)), FakeTarget(Counts(0))
    both = Handover(here, beyond, max_here={"chat": 4}.get)
    await both.scale("chat", 9, "test")
    assert (here.asked, beyond.asked) == ([4], [5])
    here.found = Counts(2, room=50)
    await both.scale("embed", 20, "test")
    assert here.asked == [4, 15]


async def test_one_parts_failure_is_raised_after_the_other_has_ended() -> None:
    """The node does not drain in time; the pods beyond go all the same."""
    here = FakeTarget(Counts(8), DrainTimeout("chat-7 has 2 requests"))
    beyond = FakeTarget(Counts(2), num_turns=5)
    with pytest.raises(DrainTimeout):
        await Handover(here, beyond).scale("chat", 7, "test")
    assert beyond.found == Counts(0)


# --- KEDA as the one who acts ---


async def test_until_something_is_decided_keda_is_told_what_runs() -> None:
    """knative#4795: a scaler that restarts beside 6 pods asks for 6, and for nothing while it cannot count."""
    pods = FakeTarget(None)
    target = KedaTarget(pods)
    with pytest.raises(
        WantedUnknown, match="what chat should have is not decided, and its pods cannot be counted"
    ):
        await target.wanted("chat")
    pods.found = Counts(4, starting=2)
    assert await target.wanted("chat") == 6
    pods.found = None
    assert await target.wanted("chat") == 6


async def test_a_change_is_told_at_once_and_done_when_the_pods_are_there() -> None:
    """1 → 3: notice and answer come first, then the pods, then the result; stale counts change no answer."""
    pods = FakeTarget(Counts(1))
    target = KedaTarget(pods, poll_s=0)
    changes = target.changes()
    await anext(changes)
    change = asyncio.create_task(target.scale("chat", 3, "test"))
    await asyncio.wait_for(anext(changes), 10)
    assert await target.wanted("chat") == 3
    for found in (Counts(1), None, Counts(2, starting=1), Counts(3, draining=1)):
        pods.found = found
        for _ in range(5):
            await asyncio.sleep(0)
        assert not change.done()
        assert await target.wanted("chat") == 3
    pods.found = Counts(3)
    result = await change
    assert (result.before, result.after, result.detail) == (1, 3, "by KEDA")


async def test_a_scaler_that_follows_keeps_to_what_runs() -> None:
    """Its own old decision of 2 is forgotten while another leads and makes it 6; taking over, it asks for 6."""
    decides = True
    pods = FakeTarget(Counts(2))
    target = KedaTarget(pods, decides=lambda: decides)
    await target.scale("chat", 2, "test")
    decides, pods.found = False, Counts(6)
    await target.counts("chat")
    decides = True
    assert await target.wanted("chat") == 6


async def test_zero_is_told_only_when_zero_was_decided() -> None:
    """Then KEDA goes to zero, once its cooldownPeriod is over."""
    pods = FakeTarget(Counts(1))
    target = KedaTarget(pods, poll_s=0)
    assert await target.wanted("chat") == 1
    change = asyncio.create_task(target.scale("chat", 0, "idle"))
    await asyncio.sleep(0)
    assert await target.wanted("chat") == 0
    pods.found = Counts(0)
    assert (await asyncio.wait_for(change, 10)).after == 0
