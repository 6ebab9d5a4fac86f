"""Two scalers on one Triton: the mark, the question whether its owner lives, and writers that know no marks."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from google.protobuf import json_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from scaler.acting.challenge import Claim
from scaler.acting.ownership import HostLock, Mark, Watch, canonical, owner_id, read_mark, with_mark
from scaler.acting.plain_update import with_count
from scaler.errors import LoadPending, OwnedByOther

FIRST, SECOND = "aaaaaaaa", "bbbbbbbb"


def config(count: int = 1) -> ModelConfig:
    made = ModelConfig(name="resnet", backend="onnxruntime")
    made.instance_group.add(name="resnet_0", kind="KIND_CPU", count=count)
    return made


@pytest.fixture(autouse=True)
def looks_without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scaler.acting.challenge.LOOK_S", 0)


@dataclass
class FakeTriton:
    served: ModelConfig = field(default_factory=config)
    writes: int = 0
    is_busy: bool = False

    async def config(self, model: str) -> ModelConfig:
        copied = ModelConfig()
        copied.CopyFrom(self.served)
        return copied

    async def load(self, model: str, config_json: str, timeout_s: float) -> None:
        if self.is_busy:
            raise LoadPending("load has not returned")
        self.writes += 1
        self.served = json_format.Parse(config_json, ModelConfig())


def claim(triton: FakeTriton, me: str, answer_s: float = 10.0) -> Claim:
    return Claim(triton, me, lambda _: None, answer_s)


def test_a_mark_stands_behind_the_groups_name_and_is_replaced_not_piled_up() -> None:
    """Nothing but the name of the first group that takes requests changes."""
    assert read_mark(config()) is None
    marked = with_mark(config(), Mark(FIRST))
    assert marked.instance_group[0].name == "resnet_0.tg-aaaaaaaa"
    asked = with_mark(marked, Mark(FIRST, SECOND))
    assert (read_mark(asked), asked.instance_group[0].name) == (
        Mark(FIRST, SECOND),
        "resnet_0.tg-aaaaaaaa-bbbbbbbb",
    )
    marked.instance_group[0].name = "resnet_0"
    assert marked == config()


async def test_an_unmarked_model_and_ones_own_are_claimed_without_a_question() -> None:
    """Nothing is written before there is a change to send."""
    triton = FakeTriton()
    assert await claim(triton, FIRST).make("resnet", triton.served) == triton.served
    triton.served = with_mark(config(), Mark(FIRST))
    assert await claim(triton, FIRST).make("resnet", triton.served) == triton.served
    assert triton.writes == 0


async def test_a_living_owner_answers_and_the_second_scaler_refuses() -> None:
    """The owner writes its mark again at its next look; the count stays; the owner is not asked again at once."""
    triton = FakeTriton(with_mark(config(3), Mark(FIRST)))
    owner, second = claim(triton, FIRST), claim(triton, SECOND)
    asking = asyncio.create_task(second.make("resnet", triton.served))
    while triton.writes == 0:  # noqa: ASYNC110  # the fake has no event
        await asyncio.sleep(0)
    assert owner.is_asked(triton.served)
    await owner.answer(triton.served)
    with pytest.raises(OwnedByOther, match=r"another scaler \(aaaaaaaa\) scales 'resnet': it answered"):
        await asking
    assert triton.served == with_mark(config(3), Mark(FIRST))
    with pytest.raises(OwnedByOther):
        await second.make("resnet", triton.served)
    assert triton.writes == 2


async def test_a_dead_owner_is_succeeded() -> None:
    """Nobody answers: the challenge is what is left to write over."""
    triton = FakeTriton(with_mark(config(3), Mark(FIRST)))
    found = await claim(triton, SECOND, answer_s=0).make("resnet", triton.served)
    assert read_mark(found) == Mark(FIRST, SECOND)


async def test_an_owner_whose_update_triton_works_on_is_not_succeeded() -> None:
    """It could not answer; a question that does not get through settles nothing."""
    triton = FakeTriton(with_mark(config(), Mark(FIRST)), is_busy=True)
    with pytest.raises(OwnedByOther, match="mark of scaler aaaaaaaa, and Triton works on an update"):
        await claim(triton, SECOND, answer_s=0).make("resnet", triton.served)


def test_the_second_change_by_a_writer_that_drops_the_mark_is_refused_with_the_evidence() -> None:
    """One can be an operator's hand and is adopted; two in ten minutes are another writer (LLMKube#484)."""
    watch = Watch(FIRST)
    watch.leave(with_mark(config(2), Mark(FIRST)))
    assert watch.find(with_mark(config(2), Mark(FIRST)), 0.0) is None
    assert watch.find(config(5), 10.0) is not None
    watch.check("resnet", 11.0)
    watch.leave(with_mark(config(3), Mark(FIRST)))
    assert watch.find(config(5), 20.0) is not None
    with pytest.raises(OwnedByOther, match="2→5 12 s ago, 3→5 2 s ago"):
        watch.check("resnet", 22.0)
    watch.check("resnet", 620.0)


def test_what_a_scaler_with_a_mark_does_is_left_to_the_question() -> None:
    """Its mark is in the way already."""
    watch = Watch(FIRST)
    watch.leave(with_mark(config(2), Mark(FIRST)))
    assert watch.find(with_mark(with_count(config(2), 4), Mark(SECOND)), 1.0) is None


def test_a_triton_that_started_again_is_no_other_writer() -> None:
    """It comes back with its repository's one instance and no mark, however often it crashes."""
    watch = Watch(FIRST)
    for at_s in (1.0, 2.0, 3.0):
        watch.leave(with_mark(config(2), Mark(FIRST)))
        watch.lose_sight()
        assert watch.find(config(1), at_s) is None
    watch.check("resnet", 4.0)


def test_the_first_look_adopts_what_is_there() -> None:
    """A restarted scaler knows of no change before it."""
    assert Watch(FIRST).find(config(7), 0.0) is None


def test_a_scaler_keeps_its_name_in_its_run_directory(tmp_path: Path) -> None:
    """So a restart has nobody to ask."""
    assert owner_id(tmp_path) == owner_id(tmp_path)


def test_one_scaler_a_triton_on_one_host(tmp_path: Path) -> None:
    """By address, whatever the run directories; the one that refuses names the other's pid."""
    first = HostLock.of_triton("127.0.0.1:8001", tmp_path)
    with pytest.raises(OwnedByOther, match=r"another scaler \(pid \d+\) on this host scales Triton"):
        HostLock.of_triton("localhost:8001", tmp_path)
    HostLock.of_triton("127.0.0.1:9001", tmp_path).close()
    first.close()
    HostLock.of_triton("localhost:8001", tmp_path).close()


def test_one_scaler_a_node_under_whatever_name_its_triton_is_known(tmp_path: Path) -> None:
    """The lock lies beside the node's socket."""
    held = HostLock.of_node(str(tmp_path / "control.sock"))
    with pytest.raises(OwnedByOther, match=r"on this host scales the node at .*control.sock"):
        HostLock.of_node(str(tmp_path / "control.sock"))
    held.close()


def test_a_lock_folder_that_somebody_else_made_is_not_trusted(tmp_path: Path) -> None:
    """A link in a folder for all."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(OwnedByOther, match="not a folder of this user"):
        HostLock.of_triton("127.0.0.1:8001", tmp_path / "link")


def test_all_names_of_the_loopback_are_one() -> None:
    """Else two scalers on one host would not see each other."""
    assert canonical("127.0.0.1:8001") == canonical("localhost:8001") == canonical("[::1]:8001")
    assert canonical("10.0.0.7:8001") == "10.0.0.7:8001"
