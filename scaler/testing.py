"""Fakes of what the scaler talks to, and a clock that stands until it is told to go."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tritonclient.grpc import service_pb2
from tritonclient.grpc.model_config_pb2 import ModelConfig

from contracts import node_pb2
from scaler.acting.target import ScaleResult
from scaler.deciding.observation import Counts, Quality, Reading, Signals
from scaler.errors import Busy, ModelUnknown, NodeUnreachable, TritonUnreachable

NS_PER_S = 1_000_000_000
START_S = 1_800_000_000.0


class FakeClock:
    """`clock()` is the time; `await clock.sleep(s)` lets it pass, and lets other tasks run."""

    def __init__(self, now: float = START_S) -> None:
        self.now = self.began_s = now
        self._waiters: list[tuple[float, asyncio.Future[None]]] = []

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> float:
        self.now += seconds
        for at_s, waiter in list(self._waiters):
            if at_s <= self.now:
                self._waiters.remove((at_s, waiter))
                if not waiter.done():
                    waiter.set_result(None)
        return self.now

    async def until(self, at_s: float) -> None:
        """Returns when the clock has been told to go that far."""
        if at_s > self.now:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append((at_s, waiter))
            await waiter

    async def sleep(self, seconds: float) -> None:
        """For who is to sleep: lets the time pass, and others run."""
        self.advance(max(0.0, seconds))
        await settle()


async def settle(num_turns: int = 20) -> None:
    """Let all tasks that can go on go on."""
    for _ in range(num_turns):
        await asyncio.sleep(0)


@dataclass
class FakeModel:
    """What a Triton has counted of one model."""

    config: ModelConfig = field(default_factory=ModelConfig)
    stats: Any = field(default_factory=service_pb2.ModelStatistics)
    pending: float = 0.0

    def execute(self, batch: int, seconds: float, *, times: int = 1, queued_s: float = 0.0) -> None:
        """`times` batches of `batch` requests, each `seconds` long, after `queued_s` in the queue each."""
        num = batch * times
        self.stats.inference_count += num
        self.stats.execution_count += times
        of_requests = self.stats.inference_stats
        of_requests.success.count += num
        of_requests.queue.count += num
        of_requests.queue.ns += round(num * queued_s * NS_PER_S)
        of_requests.compute_infer.ns += round(num * seconds * NS_PER_S)
        entry = next((one for one in self.stats.batch_stats if one.batch_size == batch), None)
        entry = entry or self.stats.batch_stats.add(batch_size=batch)
        entry.compute_infer.count += times
        entry.compute_infer.ns += round(times * seconds * NS_PER_S)

    def reload(self) -> None:
        """Loaded anew: its counters begin at 0."""
        self.stats = service_pb2.ModelStatistics()


@dataclass
class FakeTriton:
    """Statistics, config and metrics of some models. `is_down` takes the metrics along, as in the real one."""

    models: dict[str, FakeModel] = field(default_factory=dict)
    is_down: bool = False
    metrics_down: bool = False
    hangs: bool = False
    num_config_calls: int = 0
    num_metrics_calls: int = 0

    def model(self, name: str, *, decoupled: bool = False, on_gpu: bool = False) -> FakeModel:
        made = self.models.setdefault(name, FakeModel())
        made.config.name = name
        made.config.model_transaction_policy.decoupled = decoupled
        del made.config.instance_group[:]
        made.config.instance_group.add(name=f"{name}-0", count=1, kind="KIND_GPU" if on_gpu else "KIND_CPU")
        return made

    async def statistics(self, model: str) -> Any:
        return (await self._answer(model)).stats

    async def config(self, model: str) -> ModelConfig:
        self.num_config_calls += 1
        return (await self._answer(model)).config

    async def pending(self) -> Mapping[str, float]:
        self.num_metrics_calls += 1
        if self.is_down or self.metrics_down:
            raise TritonUnreachable("no metrics from Triton")
        return {name: model.pending for name, model in self.models.items()}

    async def _answer(self, model: str) -> FakeModel:
        if self.hangs:
            await asyncio.Event().wait()
        if self.is_down:
            raise TritonUnreachable("no answer from Triton")
        if model not in self.models:
            raise ModelUnknown(f"no model {model!r}")
        return self.models[model]


@dataclass
class FakeNode:
    """A node daemon's status, to be filled in by hand."""

    reply: node_pb2.NodeStatus = field(default_factory=node_pb2.NodeStatus)
    is_down: bool = False
    num_calls: int = 0

    def serve(self, model: str, kind: str = "generate", block_bytes: int = 1000) -> node_pb2.ModelStatus:
        return self.reply.models.add(name=model, kind=kind, block_bytes=block_bytes, usable_blocks=100)

    def attach(self, model: str, instance: str, **fields: Any) -> node_pb2.InstanceStatus:
        given = {"state": "serving", "cap": 64, "attached_unix_ms": 1, **fields}
        return self.reply.instances.add(model=model, instance=instance, **given)

    async def status(self) -> node_pb2.NodeStatus:
        self.num_calls += 1
        if self.is_down:
            raise NodeUnreachable("no answer from the node daemon")
        return self.reply


@dataclass
class FakeTarget:
    """Instances that come and go in fake time."""

    clock: FakeClock
    ready: dict[str, int] = field(default_factory=dict)
    start_s: float = 0.3
    drain_s: float = 1.0
    is_down: bool = False
    error: Exception | None = None
    """What the next calls of `scale` fail with."""
    starting: dict[str, int] = field(default_factory=dict)
    draining: dict[str, int] = field(default_factory=dict)
    calls: list[tuple[str, int]] = field(default_factory=list)
    changing: set[str] = field(default_factory=set)
    num_overlaps: int = 0
    """Calls for a model that came while another one ran: there must be none."""

    async def counts(self, model: str) -> Counts | None:
        if self.is_down:
            return None
        return Counts(self.ready.get(model, 0), self.starting.get(model, 0), self.draining.get(model, 0))

    async def scale(self, model: str, wanted: int, reason: str) -> ScaleResult:
        self.calls.append((model, wanted))
        if model in self.changing:
            self.num_overlaps += 1
            raise Busy(f"another update of {model!r} runs")
        if self.error is not None:
            raise self.error
        before, started_s = self.ready.get(model, 0), self.clock()
        self.changing.add(model)
        try:
            if wanted > before:
                await self._start(model, wanted, before)
            elif wanted < before:
                await self._drain(model, wanted, before)
        finally:
            self.changing.discard(model)
        return ScaleResult(model, before, self.ready.get(model, 0), self.clock() - started_s)

    async def _start(self, model: str, wanted: int, before: int) -> None:
        self.starting[model] = wanted - before
        try:
            await self.clock.until(self.clock() + self.start_s)
            self.ready[model] = wanted
        finally:
            self.starting[model] = 0

    async def _drain(self, model: str, wanted: int, before: int) -> None:
        self.ready[model], self.draining[model] = wanted, before - wanted
        try:
            await self.clock.until(self.clock() + self.drain_s)
        except asyncio.CancelledError:
            await settle(5)  # letting them serve on takes calls, too
            self.ready[model] = before
            raise
        finally:
            self.draining[model] = 0


@dataclass
class FakeLoad:
    """A collector over load that is given in busy instances. What more instances than there are would do waits."""

    busy: dict[str, float] = field(default_factory=dict)
    queue: dict[str, float] = field(default_factory=dict)
    requests_per_busy_s: float = 10.0
    broken: dict[str, Exception] = field(default_factory=dict)
    quality: Quality = Quality.GOOD
    """Of all figures."""
    forgotten: list[str] = field(default_factory=list)
    _last_s: dict[str, float] = field(default_factory=dict)

    async def signals(self, model: str, counts: Counts | None, now: float) -> Signals:
        if model in self.broken:
            raise self.broken[model]
        ready = counts.ready if counts else 0
        busy, passed_s = self.busy.get(model, 0.0), now - self._last_s.get(model, now)
        self._last_s[model] = now
        grown = (busy - ready) * self.requests_per_busy_s * passed_s
        self.queue[model] = max(0.0, self.queue.get(model, 0.0) + grown)
        working = min(busy, ready) if not self.queue[model] else float(ready)

        def reading(value: float) -> Reading:
            return Reading(self.quality, value)

        return Signals(
            utilization=reading(working / ready if ready else 0.0),
            queue=reading(self.queue[model]),
            concurrency=reading(self.queue[model] + working),
            arrivals_per_s=reading(busy * self.requests_per_busy_s),
            busy_s_per_request=reading(1 / self.requests_per_busy_s),
        )

    def forget(self, model: str) -> None:
        self.forgotten.append(model)
        self._last_s.pop(model, None)
