"""Models of our node as a target: what is counted, to zero and back, what a killed scaler left behind."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from scaler.acting.instance_update import InstanceLoad
from scaler.acting.model_lock import ModelLock
from scaler.acting.node_target import NodeTarget, count
from scaler.acting.target import Limits
from scaler.deciding.observation import Counts
from scaler.errors import Busy, DrainTimeout, InUse, ModelUnknown, NodeUnreachable, StartAbandoned
from tests.unit.scaler.fake_triton import FakeTriton, served_by_node


def target(triton: FakeTriton, run_dir: Path, **limits: float) -> NodeTarget:
    return NodeTarget(
        triton,
        triton.node,
        run_dir,
        limits=lambda _: Limits(**limits),
        say=lambda _: None,
        end_stubs=triton.end_stubs,
    )


def load(name: str, *, is_draining: bool = False, has_worker: bool = True) -> InstanceLoad:
    return InstanceLoad(name, 1, 0, 0, 0, is_draining, has_worker)


def test_an_instance_counts_as_ready_when_triton_serves_it_and_a_worker_is_there() -> None:
    """chat-1 waits for a worker, chat-2 is not attached yet, chat-3 is not served yet, chat-4 only asked for."""
    loads = [load("chat-0"), load("chat-1", has_worker=False), load("chat-3")]
    counted = count(("chat-0", "chat-1", "chat-2"), loads, ("chat-3", "chat-4"), 0)
    assert (counted.ready, counted.starting, counted.total) == (1, 4, 5)
    assert counted.room == 59


def test_an_instance_that_drains_is_not_ready_and_still_takes_room() -> None:
    """Served or no more: 3 attached, 2 of them draining."""
    loads = [load("chat-0"), load("chat-1", is_draining=True), load("chat-2", is_draining=True)]
    counted = count(("chat-0", "chat-1"), loads, (), 0)
    assert (counted.ready, counted.starting, counted.draining, counted.room) == (1, 0, 2, 61)


async def test_instances_asked_for_are_counted_while_triton_still_adds_them(tmp_path: Path) -> None:
    """Triton shows nothing of an update before it is done: 1 ready, 2 starting, never 1 alone (aibrix#2670)."""
    triton = served_by_node("chat-0")
    triton.hangs = True
    made = target(triton, tmp_path, start_deadline_s=60)
    task = asyncio.create_task(made.scale("chat", 3, "queue"))
    while not triton.loads:  # noqa: ASYNC110  # the fake has no event
        await asyncio.sleep(0)
    assert await made.counts("chat") == Counts(ready=1, starting=2, room=61)
    with pytest.raises(Busy, match="one change at a time"):
        await made.scale("chat", 4, "queue")
    triton.end_stubs("chat", ["chat-1"])
    await asyncio.gather(task, return_exceptions=True)
    assert await made.counts("chat") == Counts(ready=1, room=63)


async def test_an_abandoned_start_is_no_longer_counted(tmp_path: Path) -> None:
    """initialize hangs for ever: given up at the deadline, the count is honest, the next try goes through."""
    triton = served_by_node("chat-0")
    triton.hangs = True
    made = target(triton, tmp_path, start_deadline_s=0)
    with pytest.raises(StartAbandoned, match="chat-1 not started after 0 s"):
        await made.scale("chat", 2, "queue")
    assert await made.counts("chat") == Counts(ready=1, room=63)
    triton.hangs = False
    assert (await made.scale("chat", 2, "queue")).detail == "+chat-2"


async def test_nobody_answers_is_not_zero_instances(tmp_path: Path) -> None:
    """None: the loop holds."""
    triton = served_by_node("chat-0")

    async def dead(model: str) -> list[InstanceLoad]:
        raise NodeUnreachable("no answer")

    triton.node.loads = dead  # type: ignore[method-assign]
    assert await target(triton, tmp_path).counts("chat") is None


async def test_to_zero_drains_all_and_unloads_and_counts_zero(tmp_path: Path) -> None:
    """Not None: the model is known and has no instance."""
    triton = served_by_node("chat-0", "chat-1")
    made = target(triton, tmp_path)
    result = await made.scale("chat", 0, "idle")
    assert (result.before, result.after, result.detail) == (2, 0, "-chat-0 -chat-1")
    assert not triton.is_loaded
    assert await made.counts("chat") == Counts(ready=0, room=64)
    assert (await made.scale("chat", 0, "idle")).after == 0


async def test_from_zero_it_comes_back_with_the_config_it_had_after_a_restart_too(tmp_path: Path) -> None:
    """max_batch_size as it rested; names that were never used; as many instances as are wanted."""
    triton = served_by_node("chat-0")
    triton.served.max_batch_size = 7
    await target(triton, tmp_path).scale("chat", 0, "idle")
    triton.served.max_batch_size = 1
    result = await target(triton, tmp_path).scale("chat", 2, "woken")
    assert (result.before, result.after, result.detail) == (0, 2, "+chat-1 +chat-2")
    assert triton.served.max_batch_size == 7


async def test_a_model_that_never_rested_is_loaded_as_its_repository_says_and_grown(tmp_path: Path) -> None:
    """No record of ours: one instance from config.pbtxt, the second one in place."""
    triton = served_by_node("chat-0")
    triton.is_loaded = False
    triton.node.instances.clear()
    assert (await target(triton, tmp_path).scale("chat", 2, "woken")).after == 2
    assert len(triton.loads) == 1


async def test_a_record_of_an_earlier_rest_is_gone_once_the_model_serves(tmp_path: Path) -> None:
    """The stack was started anew with another config: that one is the truth, also when somebody else unloads it."""
    triton = served_by_node("chat-0")
    made = target(triton, tmp_path)
    await made.scale("chat", 0, "idle")
    triton.served.max_batch_size = 9
    triton.is_loaded = True
    triton.node.attach("chat-0", 100)
    await made.scale("chat", 2, "queue")
    triton.is_loaded = False
    await made.scale("chat", 1, "woken")
    assert triton.served.max_batch_size == 9


async def test_a_request_during_the_last_drain_keeps_the_model_loaded(tmp_path: Path) -> None:
    """Somebody is here: all serve on, nothing is unloaded."""
    triton = served_by_node("chat-0", "chat-1")
    triton.node.lands_while_draining = 1
    with pytest.raises(InUse, match="2 requests came during the drain"):
        await target(triton, tmp_path).scale("chat", 0, "idle")
    assert triton.is_loaded
    assert triton.node.resumed == ["chat-0", "chat-1"]


async def test_a_stream_that_outlasts_the_drain_keeps_the_model_loaded(tmp_path: Path) -> None:
    """drain_timeout_s of the policy counts."""
    triton = served_by_node("chat-0")
    triton.node.finishes = False
    triton.node.attach("chat-0", 100, in_flight=1)
    with pytest.raises(DrainTimeout, match="chat-0 has 1 requests in flight after 0 s"):
        await target(triton, tmp_path, drain_timeout_s=0).scale("chat", 0, "idle")
    assert triton.is_loaded


async def test_instances_that_a_killed_scaler_left_draining_serve_on(tmp_path: Path) -> None:
    """Nobody holds the model's lock: the first look at them lets them go on."""
    triton = served_by_node("chat-0", "chat-1")
    triton.node.instances["chat-1"] = replace(triton.node.instances["chat-1"], is_draining=True)
    made = target(triton, tmp_path)
    async with ModelLock(tmp_path, "chat", 0):
        await made.counts("chat")
        assert triton.node.resumed == [], "somebody drains it right now"
    await made.counts("chat")
    assert triton.node.resumed == ["chat-1"]


async def test_a_model_that_triton_does_not_have_is_an_error_and_no_count(tmp_path: Path) -> None:
    """A name misspelt in the policy."""
    triton = served_by_node("chat-0")
    made = target(triton, tmp_path)
    triton.served.name = "other"
    triton.is_loaded = False
    assert await made.counts("chat") is None
    with pytest.raises(ModelUnknown, match="no model 'chat'"):
        await made.scale("chat", 1, "woken")
