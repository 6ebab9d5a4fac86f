"""The collector on the real Triton, under load whose truth is known."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf import json_format

from benchmarks.clients import TritonLoad
from contracts.stack import Stack
from scaler.acting.actuator import Actuator
from scaler.deciding.observation import Counts, Quality, Signals
from scaler.measuring.collector import Collector
from scaler.measuring.figures import Spans
from scaler.measuring.triton_metrics import TritonMetrics
from scaler.node_client import NodeClient
from scaler.triton_client import TritonClient
from tests.e2e.support import StubNode, closed_loop_clients, launched, write_model
from tests.models import chat_text
from tidegate.testing import RunningStack

pytestmark = pytest.mark.e2e

BATCH_S = 0.1
SPANS = Spans(utilization_s=4.0, queue_s=2.0)


class Watch:
    """A collector of one model that looks every 0.4 s, without a loop around it."""

    def __init__(self, model: str, stack: Stack, *, with_node: bool = False) -> None:
        self.model = model
        self.triton = TritonClient(stack.triton_grpc, stack.triton_key)
        self._metrics = TritonMetrics(stack.triton_metrics)
        self._node = NodeClient(stack.node_socket) if with_node else None
        self.collector = Collector(
            self.triton,
            clock=time.time,
            metrics=self._metrics,
            node=self._node,
            ask_timeout_s=5.0,
            spans=SPANS,
        )

    async def look(self, num_ready: int = 1, times: int = 1) -> Signals:
        for _ in range(times):
            await asyncio.sleep(0.4)
            signals = await self.collector.signals(self.model, Counts(num_ready), time.time())
        return signals

    async def close(self) -> None:
        for source in (self.triton, self._metrics, self._node):
            if source is not None:
                await source.close()


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A Triton with `slow`: batches of at most 8 that take 0.1 s of no CPU."""
    repository: Path = tmp_path_factory.mktemp("repository")
    write_model(repository, "slow", batch_s=BATCH_S)
    with launched(repository, "slow") as up:
        yield up.wait_ready()


async def test_a_batch_model_is_measured_as_it_is(slow: Stack):
    """24 clients in a closed loop: one instance all busy, 16 wait 0.2 s each, as many answers as the clients count.

    Then nobody: zeros that are measured.
    """
    watch = Watch("slow", slow)
    await watch.look()
    async with closed_loop_clients(slow.triton_grpc, "slow", 24) as outcomes:
        await watch.look(times=4)
        num_before, before_s = outcomes.num_ok, time.monotonic()
        busy = await watch.look(times=10)
        answered_per_s = (outcomes.num_ok - num_before) / (time.monotonic() - before_s)
    idle = await watch.look(times=14)
    await watch.close()
    assert busy.utilization.value > 0.6
    assert 8 < busy.queue.value < 24
    assert busy.queue_time_s.value > BATCH_S
    assert busy.arrivals_per_s.value == pytest.approx(answered_per_s, rel=0.25)
    assert busy.busy_s_per_request.value == pytest.approx(BATCH_S / 8, rel=0.5)
    assert busy.concurrency.value == pytest.approx(24, abs=8)
    assert (idle.utilization.quality, idle.utilization.value) == (Quality.GOOD, 0.0)
    assert (idle.queue.quality, idle.queue.value) == (Quality.GOOD, 0.0)
    assert idle.busy_s_per_request.quality is Quality.IDLE


async def test_an_instance_that_is_added_in_place_leaves_the_counters_going(slow: Stack, tmp_path: Path):
    """24 clients on 1, then on 3 instances: 80, then up to 240 a second, and no look without a figure."""
    watch = Watch("slow", slow)
    actuator = Actuator(watch.triton, StubNode(slow.pids["tritonserver"]), tmp_path, say=print)
    await watch.look()
    async with closed_loop_clients(slow.triton_grpc, "slow", 24):
        before = await watch.look(times=6)
        await actuator.scale("slow", 3)
        seen = [await watch.look(3) for _ in range(14)]
    await actuator.scale("slow", 1)
    await watch.close()
    assert {signals.utilization.quality for signals in seen} == {Quality.GOOD}
    assert seen[-1].arrivals_per_s.value > 1.5 * before.arrivals_per_s.value
    assert seen[-1].utilization.value > 0.6


async def test_a_reload_begins_a_new_window_and_an_unload_is_no_trouble(slow: Stack):
    """Another queue delay is a full reload: its counters begin at 0, no rate is negative or huge."""
    watch = Watch("slow", slow)
    async with closed_loop_clients(slow.triton_grpc, "slow", 8):
        before = await watch.look(times=4)
        config = await watch.triton.config("slow")
        config.dynamic_batching.max_queue_delay_microseconds += 1
        text = json_format.MessageToJson(config, preserving_proto_field_name=True)
        await watch.triton.load("slow", text, 30.0)
        seen = [await watch.look() for _ in range(5)]
    await watch.triton.unload("slow")
    gone = await watch.look(0, times=3)
    await watch.close()
    rates = [signals.arrivals_per_s.value for signals in seen if signals.arrivals_per_s.is_usable]
    assert before.arrivals_per_s.is_usable
    assert seen[0].arrivals_per_s.quality is Quality.MISSING
    assert rates
    assert all(0 <= rate < 5 * before.arrivals_per_s.value for rate in rates)
    assert watch.collector.troubles == {}
    assert gone.wakes == 0


async def test_a_generate_model_is_measured_by_its_places_while_triton_sees_nothing(running: RunningStack):
    """72 streams on one instance of 64 places: 1.0, 8 waiting in Triton, whose own statistics stand still."""
    watch = Watch("chat", running.stack, with_node=True)
    options = {"max_tokens": 24, "temperature": 0, "ignore_eos": True}
    async with TritonLoad(running.stack.triton_grpc) as load, asyncio.TaskGroup() as group:
        idle = await watch.look(times=2)
        for number in range(72):
            group.create_task(load.stream("chat", chat_text(f"Count to {number}."), options))
        while (await watch.look()).queue.value < 8:
            pass
        first = await watch.triton.statistics("chat")
        full = await watch.look(times=5)
        last = await watch.triton.statistics("chat")
    done = await watch.look(times=14)
    await watch.close()
    assert (idle.utilization.quality, idle.utilization.value) == (Quality.GOOD, 0.0)
    assert first.execution_count == last.execution_count
    assert full.utilization.value > 0.6
    assert full.concurrency.value > 40
    assert full.queue.value >= 8
    assert 0 < full.kv_occupancy.value < 1
    assert (done.utilization.value, done.queue.value) == (0.0, 0.0)
