"""The KV pool and the engines, as the node daemon streams them (`WatchMemory` in contracts/node.proto).

The node keeps a high-water mark for this stream alone, so a peak of any length between two samples is in the next.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Hashable
from contextlib import aclosing
from typing import Any

import grpc
import grpc.aio

from contracts import node_pb2, node_pb2_grpc
from loadtest.watching.counting import Accumulated
from loadtest.watching.source import Reading, Sample, SourceUnreadable

SILENT_PERIODS = 5
SILENT_LEAST_S = 2.0
"""A node that says nothing for so many periods, and so long, is asked anew."""


class NodeFigures:
    """Makes readings of the node's samples; remembers the counters, which a worker that died took with it."""

    def __init__(self) -> None:
        self._preempted = Accumulated()
        self._refused = Accumulated()

    def readings(self, sample: node_pb2.MemorySample) -> tuple[Reading, ...]:
        readings = [
            Reading("pool.total_bytes", (), "bytes", sample.total_bytes),
            Reading("pool.used_bytes", (), "bytes", sample.held_bytes),
            Reading("pool.high_water_bytes", (), "bytes", sample.high_water_bytes),
            Reading("pool.cached_bytes", (), "bytes", sample.cached_bytes),
        ]
        for model in sample.models:
            if model.block_bytes:
                readings += _blocks(model)
        return (*readings, *self._engines(sample), *self._counts(sample))

    def _engines(self, sample: node_pb2.MemorySample) -> list[Reading]:
        """Running and waiting only of models with a KV cache: Triton holds the queues of the others."""
        running: defaultdict[str, int] = defaultdict(int)
        in_flight: defaultdict[str, int] = defaultdict(int)
        ready = {model.model: 0 for model in sample.models}
        for instance in sample.instances:
            running[instance.model] += instance.num_running
            in_flight[instance.model] += instance.in_flight
            ready[instance.model] = ready.get(instance.model, 0) + _serves(instance)
        readings = [Reading("instances.ready", _of(model), "1", count) for model, count in ready.items()]
        for model in (each.model for each in sample.models if each.block_bytes):
            waiting = max(0, in_flight[model] - running[model])
            readings += [
                Reading("running", _of(model), "1", running[model]),
                Reading("waiting", _of(model), "1", waiting),
            ]
        return readings

    def _counts(self, sample: node_pb2.MemorySample) -> list[Reading]:
        """Since the watching began; 0 is said of every model with a KV cache."""
        models = [each.model for each in sample.models if each.block_bytes]
        preempted: dict[Hashable, tuple[str, float]] = {
            (each.instance, each.attached_unix_ms, each.worker_pid): (each.model, each.num_preempted)
            for each in sample.instances
        }
        refused: dict[Hashable, tuple[str, float]] = {
            each.model: (each.model, each.num_refused) for each in sample.models if each.block_bytes
        }
        counts = [
            ("kv.preemptions", self._preempted.update(preempted)),
            ("kv.refused", self._refused.update(refused)),
        ]
        return [
            Reading(name, _of(model), "1", of_model.get(model, 0.0))
            for name, of_model in counts
            for model in models
        ]


def _blocks(model: node_pb2.ModelMemory) -> list[Reading]:
    """In whole blocks. The total is what the model may ever hold: its ceiling, or what others' floors leave it."""
    size = model.block_bytes
    return [
        Reading("kv.used_blocks", _of(model.model), "blocks", model.held_bytes // size),
        Reading("kv.high_water_blocks", _of(model.model), "blocks", model.high_water_bytes // size),
        Reading("kv.total_blocks", _of(model.model), "blocks", model.limit_bytes // size),
        Reading("kv.cached_blocks", _of(model.model), "blocks", model.cached_bytes // size),
    ]


def _serves(instance: node_pb2.InstanceStatus) -> bool:
    return instance.state == "serving" and instance.worker_pid != 0


def _of(model: str) -> tuple[tuple[str, str], ...]:
    return (("model", model),)


class NodeSource:
    """`socket_path`: the control socket of a node on this machine, whose clock is ours."""

    name = "node"

    def __init__(self, socket_path: str, period_s: float) -> None:
        self.period_s = period_s
        self._address = f"unix:{socket_path}"
        self._figures = NodeFigures()

    async def samples(self) -> AsyncGenerator[Sample, None]:
        async with grpc.aio.insecure_channel(self._address) as channel:
            stub: Any = node_pb2_grpc.NodeStub(channel)  # type: ignore[no-untyped-call]  # generated
            call = stub.WatchMemory(node_pb2.WatchMemoryRequest(period_ms=round(self.period_s * 1000)))
            try:
                async with aclosing(self._read(call)) as samples:
                    async for sample in samples:
                        yield Sample(sample.monotonic_s, self._figures.readings(sample))
            finally:
                call.cancel()

    async def _read(self, call: Any) -> AsyncGenerator[node_pb2.MemorySample, None]:
        silent_s = max(SILENT_LEAST_S, SILENT_PERIODS * self.period_s)
        try:
            while True:
                message = await asyncio.wait_for(call.read(), silent_s)
                if message is grpc.aio.EOF:
                    raise SourceUnreadable("the node daemon ended the stream of samples")
                yield message
        except grpc.aio.AioRpcError as exc:
            raise SourceUnreadable(_in_words(exc, self._address)) from exc
        except TimeoutError as exc:
            raise SourceUnreadable(f"the node daemon said nothing for {silent_s:g} s") from exc


def _in_words(exc: grpc.aio.AioRpcError, address: str) -> str:
    if exc.code() is grpc.StatusCode.UNIMPLEMENTED:
        return f"the node daemon at {address} is older than this load test: it has no WatchMemory"
    return f"no samples from the node daemon at {address}: {exc.code().name.lower()}: {exc.details()}"
