"""FakeScaler and FakeNode: real gRPC servers with made figures, for tests of the console and its pictures."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc

from contracts import node_pb2, node_pb2_grpc, scaler_pb2, scaler_pb2_grpc

MIB = 1024 * 1024


class FakeScaler(scaler_pb2_grpc.ScalerServicer):
    """Says of `chat` what its fields say; `decide` tells those who watch."""

    def __init__(self) -> None:
        self.ready, self.wanted, self.queue, self.utilization = 1, 1, 0.0, 0.4
        self._decisions: list[Any] = []
        self._watchers: list[asyncio.Queue[Any]] = []

    def decide(self, before: int, wanted: int, reason: str, at_unix_s: float | None = None) -> None:
        decision = scaler_pb2.Decision(
            model="chat",
            at_unix_s=time.time() if at_unix_s is None else at_unix_s,
            before=before,
            wanted=wanted,
            direction="out" if wanted > before else "in",
            cause="pressure",
            reason=f"chat {before}→{wanted}: {reason}",
        )
        self._decisions.append(decision)
        for watcher in self._watchers:
            watcher.put_nowait(decision)

    async def GetStatus(self, request: Any, context: Any) -> Any:
        def good(value: float) -> Any:
            return scaler_pb2.Reading(quality="good", value=value)

        chat = scaler_pb2.ModelStatus(
            model="chat",
            is_managed=True,
            wanted=self.wanted,
            counts=scaler_pb2.Counts(ready=self.ready, starting=max(0, self.wanted - self.ready)),
            signals=scaler_pb2.Signals(
                utilization=good(self.utilization),
                queue=good(self.queue),
                queue_time_s=scaler_pb2.Reading(quality="missing"),
            ),
            min_instances=1,
            max_instances=4,
            decision=self._decisions[-1] if self._decisions else None,
        )
        return scaler_pb2.ScalerStatus(now_unix_s=time.time(), models=[chat])

    async def WatchDecisions(self, request: Any, context: Any) -> AsyncIterator[Any]:
        watcher: asyncio.Queue[Any] = asyncio.Queue()
        self._watchers.append(watcher)
        for decision in list(self._decisions):
            yield decision
        while True:
            yield await watcher.get()


class FakeNode(node_pb2_grpc.NodeServicer):
    """An arena of 256 MiB of which two models and two tenants have parts."""

    total_bytes = 256 * MIB
    held_bytes = 96 * MIB

    def __init__(self) -> None:
        self.extents = [
            node_pb2.Extent(offset_bytes=0, num_bytes=40 * MIB, model="chat", state="leased", tenant="acme"),
            node_pb2.Extent(
                offset_bytes=44 * MIB, num_bytes=24 * MIB, model="chat", state="published", tenant="acme"
            ),
            node_pb2.Extent(
                offset_bytes=70 * MIB, num_bytes=30 * MIB, model="chat", state="cached", tenant="globex"
            ),
            node_pb2.Extent(
                offset_bytes=160 * MIB, num_bytes=32 * MIB, model="long", state="leased", tenant="globex"
            ),
        ]

    async def GetStatus(self, request: Any, context: Any) -> Any:
        chat = node_pb2.ModelStatus(name="chat", kind="generate", block_bytes=MIB)
        chat.tenants.add(tenant="acme", leased_bytes=40 * MIB, published_bytes=24 * MIB)
        chat.tenants.add(tenant="globex", leased_bytes=0, published_bytes=30 * MIB)
        return node_pb2.NodeStatus(
            pool=node_pb2.PoolStatus(total_bytes=self.total_bytes, recent_high_water_bytes=130 * MIB),
            models=[chat],
            extents=self.extents if request.with_extents else [],
        )

    async def WatchMemory(self, request: Any, context: Any) -> AsyncIterator[Any]:
        while True:
            yield node_pb2.MemorySample(
                monotonic_s=time.monotonic(),
                total_bytes=self.total_bytes,
                held_bytes=self.held_bytes,
                high_water_bytes=self.held_bytes + 20 * MIB,
                cached_bytes=30 * MIB,
                models=[
                    node_pb2.ModelMemory(
                        model="chat",
                        block_bytes=MIB,
                        held_bytes=64 * MIB,
                        cached_bytes=30 * MIB,
                        limit_bytes=192 * MIB,
                    ),
                    node_pb2.ModelMemory(
                        model="long", block_bytes=2 * MIB, held_bytes=32 * MIB, limit_bytes=128 * MIB
                    ),
                ],
                instances=[
                    node_pb2.InstanceStatus(
                        model="chat", instance="chat-0", state="serving", in_flight=3, num_running=3, cap=8
                    )
                ],
            )
            await asyncio.sleep(request.period_ms / 1000)


@asynccontextmanager
async def serving(scaler: FakeScaler, node: FakeNode, folder: Path) -> AsyncIterator[tuple[str, str]]:
    """(the scaler's address, the node's socket)."""
    server, socket_path = grpc.aio.server(), folder / "control.sock"
    scaler_pb2_grpc.add_ScalerServicer_to_server(scaler, server)  # type: ignore[no-untyped-call]
    node_pb2_grpc.add_NodeServicer_to_server(node, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.add_insecure_port(f"unix:{socket_path}")
    await server.start()
    try:
        yield f"127.0.0.1:{port}", str(socket_path)
    finally:
        await server.stop(None)
