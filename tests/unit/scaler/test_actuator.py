"""Scaling against a Triton and a node that are told what to do."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from scaler.acting.actuator import Actuator, InstanceChange, Patience
from scaler.acting.model_lock import ModelLock
from scaler.acting.starting import EndStubs
from scaler.errors import (
    Busy,
    ConfigDrifted,
    DrainTimeout,
    LoadPending,
    LoadRefused,
    StartAbandoned,
    UpdateTimeout,
)
from tests.unit.scaler.fake_triton import FakeNode, FakeTriton, served_by_node


@dataclass
class Rig:
    """An actuator between a fake Triton and a fake node."""

    triton: FakeTriton
    node: FakeNode
    run_dir: Path
    said: list[str] = field(default_factory=list)
    end_stubs: EndStubs | None = None
    patience: Patience = field(default_factory=lambda: Patience(lock_s=0, drain_s=0, update_s=0))

    async def scale(self, num_instances: int) -> InstanceChange:
        actuator = Actuator(
            self.triton, self.node, self.run_dir, say=self.said.append, end_stubs=self.end_stubs
        )
        return await actuator.scale("chat", num_instances, self.patience)


def rig(tmp_path: Path, *names: str) -> Rig:
    triton = served_by_node(*names)
    return Rig(triton, triton.node, tmp_path)


async def test_scale_out_prepares_spares_and_sends_one_load(tmp_path: Path) -> None:
    """All groups come in one call; the instances that were there stay."""
    made = rig(tmp_path, "chat-0")
    result = await made.scale(3)
    assert (result.before, result.added) == (("chat-0",), ("chat-1", "chat-2"))
    assert made.node.spares_asked == [2]
    assert len(made.triton.loads) == 1
    assert result.in_place


async def test_scale_in_drains_before_it_removes(tmp_path: Path) -> None:
    """The fake Triton fails the test when a victim has something in flight at the load call."""
    made = rig(tmp_path, "chat-0", "chat-1")
    made.patience = replace(made.patience, drain_s=5)
    made.node.attach("chat-0", 100, in_flight=4)
    made.node.attach("chat-1", 101, in_flight=2)
    result = await made.scale(1)
    assert result.removed == ("chat-1",)
    assert result.after == ("chat-0",)
    assert result.in_place


async def test_asking_for_what_is_there_sends_nothing(tmp_path: Path) -> None:
    """Applying the same wish twice is harmless."""
    made = rig(tmp_path, "chat-0")
    result = await made.scale(1)
    assert (result.added, result.removed, made.triton.loads) == ((), (), [])


async def test_a_drain_that_takes_too_long_is_undone(tmp_path: Path) -> None:
    """Nothing is removed, the victim serves on, and the text has the number in flight."""
    made = rig(tmp_path, "chat-0", "chat-1")
    made.node.finishes = False
    made.node.attach("chat-0", 100, in_flight=9)
    made.node.attach("chat-1", 101, in_flight=3)
    with pytest.raises(DrainTimeout, match="chat-1 has 3 requests in flight after 0 s"):
        await made.scale(1)
    assert made.node.resumed == ["chat-1"]
    assert made.triton.loads == []


async def test_a_cancel_during_the_drain_lets_the_victims_serve_on(tmp_path: Path) -> None:
    """Ctrl-C on `tidegate scale` leaves no instance that is draining for ever."""
    made = rig(tmp_path, "chat-0", "chat-1")
    made.node.finishes = False
    made.node.attach("chat-0", 100, in_flight=9)
    made.node.attach("chat-1", 101, in_flight=3)
    made.patience = replace(made.patience, drain_s=60)
    task = asyncio.create_task(made.scale(1))
    while not made.node.instances["chat-1"].is_draining:  # noqa: ASYNC110  # the fake has no event
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert made.node.resumed == ["chat-1"]


async def test_a_refused_removal_lets_the_victims_serve_on(tmp_path: Path) -> None:
    """Triton's words reach the caller."""
    made = rig(tmp_path, "chat-0", "chat-1")
    made.triton.applies, made.triton.error = False, LoadRefused("no such thing")
    with pytest.raises(LoadRefused, match="no such thing"):
        await made.scale(1)
    assert made.node.resumed == ["chat-1"]


async def test_a_load_past_its_deadline_is_watched_and_not_sent_again(tmp_path: Path) -> None:
    """The call did not return, but Triton did it: that is success."""
    made = rig(tmp_path, "chat-0")
    made.triton.error = LoadPending("load of 'chat' has not returned after 15 s")
    result = await made.scale(2)
    assert result.after == ("chat-0", "chat-1")
    assert len(made.triton.loads) == 1
    assert any("has not returned after 15 s; watching" in line for line in made.said)


async def test_an_update_that_never_shows_says_what_is_served(tmp_path: Path) -> None:
    """A victim stays drained then: Triton may still remove it, and would cut what it took on."""
    made = rig(tmp_path, "chat-0", "chat-1")
    made.triton.applies, made.triton.error = False, LoadPending("pending")
    with pytest.raises(UpdateTimeout, match=r"serves \['chat-0', 'chat-1'\].* wanted \['chat-0'\]"):
        await made.scale(1)
    assert made.node.resumed == []


async def test_a_start_that_hangs_is_given_up_and_its_stubs_are_ended(tmp_path: Path) -> None:
    """Triton has no way back from an `initialize` that never returns; it drops the update when the stub dies."""
    made = rig(tmp_path, "chat-0")
    made.triton.hangs, made.end_stubs = True, made.triton.end_stubs
    made.patience = replace(made.patience, start_s=0, update_s=60)
    with pytest.raises(StartAbandoned, match="chat-1, chat-2 not started after 0 s; given up"):
        await made.scale(3)
    assert [group.name for group in made.triton.served.instance_group] == ["chat-0"]


async def test_a_start_that_hangs_where_no_stub_can_be_ended_says_so(tmp_path: Path) -> None:
    """Triton on another host: there is only to wait, and to say what is served."""
    made = rig(tmp_path, "chat-0")
    made.triton.hangs = True
    made.patience = replace(made.patience, start_s=0, update_s=0)
    with pytest.raises(UpdateTimeout, match=r"serves \['chat-0'\].* wanted \['chat-0', 'chat-1'\]"):
        await made.scale(2)
    assert any("no stub of theirs can be ended" in line for line in made.said)


async def test_a_full_reload_is_not_called_in_place(tmp_path: Path) -> None:
    """Triton answers OK to it; the pids tell."""
    made = rig(tmp_path, "chat-0")
    made.triton.reloads_all = True
    result = await made.scale(2)
    assert not result.in_place
    assert any("not in place: chat-0 restarted" in line for line in made.said)


async def test_a_config_that_drifted_is_an_error(tmp_path: Path) -> None:
    """Triton serves something else than was sent."""
    made = rig(tmp_path, "chat-0")
    made.triton.drifts = True
    with pytest.raises(ConfigDrifted, match="serves another max_batch_size"):
        await made.scale(2)


async def test_ids_are_not_reused_in_a_run_directory(tmp_path: Path) -> None:
    """Out, in, out: the second one is another instance."""
    made = rig(tmp_path, "chat-0")
    await made.scale(2)
    await made.scale(1)
    assert (await made.scale(2)).added == ("chat-2",)


async def test_a_second_writer_of_the_same_model_waits_or_is_refused(tmp_path: Path) -> None:
    """Triton runs concurrent loads in any order."""
    made = rig(tmp_path, "chat-0")
    async with ModelLock(tmp_path, "chat", 0):
        with pytest.raises(Busy, match="another update of 'chat' still runs"):
            await made.scale(2)
    assert (await made.scale(2)).in_place
