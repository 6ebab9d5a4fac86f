"""Models of others as a target, against a Triton that is told what to do."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from google.protobuf import json_format
from tritonclient.grpc import service_pb2
from tritonclient.grpc.model_config_pb2 import ModelConfig

from scaler.acting.ownership import read_mark
from scaler.acting.plain_target import PlainTarget
from scaler.acting.target import Limits
from scaler.deciding.observation import Counts
from scaler.errors import (
    Busy,
    ConfigDrifted,
    ConfigRefused,
    DrainTimeout,
    LoadRefused,
    NeverSafe,
    UpdateStuck,
)
from scaler.triton_client import IndexEntry


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scaler.acting.plain_actuator.LOOK_S", 0.001)
    monkeypatch.setattr("scaler.acting.plain_actuator.CALM_WINDOW_S", 0.001)


@dataclass
class FakeTriton:
    served: ModelConfig = field(default_factory=lambda: config(1))
    num_requests: int = 100
    queue_s_a_look: float = 0.0
    """Time in the queue that each look at the statistics finds more of."""
    queue_s: float = 0.0
    reloads: bool = False
    drifts: bool = False
    num_loads: int = 0
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    """Loads wait for it."""
    error: Exception | None = None

    def __post_init__(self) -> None:
        self.gate.set()

    async def config(self, model: str) -> ModelConfig:
        copied = ModelConfig()
        copied.CopyFrom(self.served)
        return copied

    async def index(self) -> list[IndexEntry]:
        return [IndexEntry(self.served.name, "READY", "")]

    async def is_ready(self, model: str) -> bool:
        return True

    async def statistics(self, model: str) -> service_pb2.ModelStatistics:
        self.queue_s += self.queue_s_a_look
        stats = service_pb2.ModelStatistics()
        stats.inference_stats.success.count = self.num_requests
        stats.inference_stats.queue.ns = int(self.queue_s * 1e9)
        return stats

    async def load(self, model: str, config_json: str, timeout_s: float) -> None:
        self.num_loads += 1
        await self.gate.wait()
        if self.error:
            raise self.error
        self.served = json_format.Parse(config_json, ModelConfig())
        if self.reloads:
            self.num_requests = 0
        if self.drifts:
            self.served.max_batch_size += 1

    async def load_from_repository(self, model: str, timeout_s: float) -> None: ...
    async def unload(self, model: str) -> None: ...


def config(count: int, *, is_decoupled: bool = False) -> ModelConfig:
    made = ModelConfig(name="resnet", backend="onnxruntime", max_batch_size=8)
    made.model_transaction_policy.decoupled = is_decoupled
    made.instance_group.add(name="resnet_0", kind="KIND_CPU", count=count)
    return made


def target(triton: FakeTriton, run_dir: Path, **limits: float) -> PlainTarget:
    return PlainTarget(triton, run_dir, limits=lambda _: Limits(**limits), say=lambda _: None)


async def test_a_change_sends_the_whole_config_with_another_count_and_our_mark(tmp_path: Path) -> None:
    """1 -> 3, in place as the counters went on; asking again sends nothing."""
    triton = FakeTriton()
    made = target(triton, tmp_path)
    result = await made.scale("resnet", 3, "queue")
    assert (result.before, result.after, result.in_place) == (1, 3, True)
    assert triton.served.max_batch_size == 8
    assert read_mark(triton.served) is not None
    assert (await made.scale("resnet", 3, "queue")).after == 3
    assert triton.num_loads == 1


async def test_what_was_sent_is_counted_as_starting_and_what_was_given_up_is_not(tmp_path: Path) -> None:
    """initialize hangs: 1 ready + 2 starting, then 1; nothing else can be sent; then it comes after all."""
    triton = FakeTriton()
    triton.gate.clear()
    made = target(triton, tmp_path, start_deadline_s=0.05)
    task = asyncio.create_task(made.scale("resnet", 3, "queue"))
    while not triton.num_loads:  # noqa: ASYNC110  # the fake has no event
        await asyncio.sleep(0)
    assert await made.counts("resnet") == Counts(ready=1, starting=2, room=5)
    with pytest.raises(UpdateStuck):
        await made.scale("resnet", 4, "queue")
    with pytest.raises(UpdateStuck, match="not finished the update to 3 instances"):
        await task
    assert await made.counts("resnet") == Counts(ready=1, room=7)
    triton.gate.set()
    while made.has_outstanding("resnet"):  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert await made.counts("resnet") == Counts(ready=3, room=5)
    assert (await made.scale("resnet", 4, "queue")).after == 4


async def test_a_removal_that_was_sent_counts_as_draining(tmp_path: Path) -> None:
    """It can't be taken back: 1 ready, 2 on their way out, and a cancel waits for the end."""
    triton = FakeTriton(config(3))
    triton.gate.clear()
    made = target(triton, tmp_path)
    task = asyncio.create_task(made.scale("resnet", 1, "quiet"))
    while not triton.num_loads:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert await made.counts("resnet") == Counts(ready=1, draining=2, room=7)
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    triton.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await made.counts("resnet") == Counts(ready=1, room=7)


async def test_a_cancel_before_anything_was_sent_changes_nothing(tmp_path: Path) -> None:
    """While it waits for a calm moment; meanwhile a second call is refused."""
    triton = FakeTriton(config(3), queue_s_a_look=1e6)
    made = target(triton, tmp_path)
    task = asyncio.create_task(made.scale("resnet", 1, "quiet"))
    while triton.queue_s < 3e6:  # noqa: ASYNC110
        await asyncio.sleep(0)
    with pytest.raises(Busy, match="one change at a time"):
        await made.scale("resnet", 4, "queue")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert triton.num_loads == 0
    triton.queue_s_a_look = 0.0
    assert (await made.scale("resnet", 4, "queue")).after == 4


async def test_under_a_standing_queue_nothing_is_taken_away(tmp_path: Path) -> None:
    """The removal would starve and hold up every later update."""
    triton = FakeTriton(config(3), queue_s_a_look=1e6)
    with pytest.raises(DrainTimeout, match="requests wait for 3 instances, for 0 s now"):
        await target(triton, tmp_path, drain_timeout_s=0).scale("resnet", 1, "quiet")
    assert triton.num_loads == 0


async def test_a_decoupled_model_without_a_known_longest_answer_is_not_scaled_in(tmp_path: Path) -> None:
    """Nor to zero; out it is."""
    made = target(FakeTriton(config(2, is_decoupled=True)), tmp_path)
    for wanted in (1, 0):
        with pytest.raises(NeverSafe, match="would hang for ever; say how long an answer takes"):
            await made.scale("resnet", wanted, "quiet")
    assert (await made.scale("resnet", 3, "queue")).after == 3


async def test_a_model_that_is_reloaded_by_every_update_is_left_alone(tmp_path: Path) -> None:
    """The first reload is usual; a second one is a file that keeps changing, and costs a second copy each time."""
    triton = FakeTriton(reloads=True)
    made = target(triton, tmp_path)
    for wanted in (2, 3):
        triton.num_requests = 100
        assert (await made.scale("resnet", wanted, "queue")).in_place is False
    with pytest.raises(ConfigRefused, match="each of the last 2 updates was a full reload"):
        await made.scale("resnet", 4, "queue")


async def test_without_a_request_ever_nothing_can_tell_whether_it_was_in_place(tmp_path: Path) -> None:
    """0 before and 0 after proves nothing."""
    assert (await target(FakeTriton(num_requests=0), tmp_path).scale("resnet", 2, "queue")).in_place is None


async def test_what_triton_refuses_or_serves_otherwise_is_said(tmp_path: Path) -> None:
    """Its own words; and a config that is not the one that was sent."""
    triton = FakeTriton(error=LoadRefused("out of memory"))
    made = target(triton, tmp_path)
    with pytest.raises(LoadRefused, match="out of memory"):
        await made.scale("resnet", 2, "queue")
    assert await made.counts("resnet") == Counts(ready=1, room=7)
    triton.error, triton.drifts = None, True
    with pytest.raises(ConfigDrifted, match="serves another max_batch_size"):
        await made.scale("resnet", 2, "queue")
