"""Fakes of what the scaler talks to, and a clock that stands until it is told to go."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tritonclient.grpc import service_pb2
from tritonclient.grpc.model_config_pb2 import ModelConfig

from contracts import node_pb2
from scaler.errors import ModelUnknown, NodeUnreachable, TritonUnreachable

NS_PER_S = 1_000_000_000
START_S = 1_800_000_000.0


class FakeClock:
    """`clock()` is the time; `await clock.sleep(s)` lets it pass, and lets other tasks run."""

    def __init__(self, now: float = START_S) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> float:
        self.now += seconds
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += max(0.0, seconds)
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
