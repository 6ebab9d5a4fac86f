"""The real gateway with a scaler that wakes, or does not: over HTTP and gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import httpx
import pytest

from contracts import scaler_pb2, scaler_pb2_grpc
from gateway.testing import FakeTriton, Script, running_gateway

pytestmark = pytest.mark.integration

CHAT = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}
ASLEEP = Script(pieces=(), error="Request for unknown model: 'chat' has no available versions")


class FakeScaler(scaler_pb2_grpc.ScalerServicer):
    """Wakes chat at the first call that it gets when `is_willing`."""

    def __init__(self, triton: FakeTriton) -> None:
        self.triton = triton
        self.is_willing = True
        self.wakes: list[tuple[str, int]] = []

    async def Wake(self, request: Any, context: Any) -> Any:
        self.wakes.append((request.model, request.num_waiting))
        if self.is_willing:
            self.triton.script = Script()
            self.triton.ready_models.add("chat")
        return scaler_pb2.WakeResponse()

    async def GetStatus(self, request: Any, context: Any) -> Any:
        rests = scaler_pb2.ModelStatus(model="chat", is_managed=True, min_instances=0)
        return scaler_pb2.ScalerStatus(models=[rests])


@asynccontextmanager
async def served(scaler: FakeScaler) -> AsyncIterator[str]:
    server = grpc.aio.server()
    scaler_pb2_grpc.add_ScalerServicer_to_server(scaler, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def test_requests_for_a_sleeping_model_wake_it_and_are_answered() -> None:
    """Eight at once, streams and whole answers; the gateway is ready all the time; then one that nobody wakes."""
    async with FakeTriton(script=ASLEEP, ready_models={"embed"}) as triton:
        scaler = FakeScaler(triton)
        async with (
            served(scaler) as address,
            running_gateway(triton.address, scaler_grpc=address, wake_timeout_s=1.0) as gateway,
            httpx.AsyncClient(base_url=gateway.url) as http,
        ):
            assert (await http.get("/health/ready")).status_code == 200
            answers = await asyncio.gather(
                *(
                    http.post("/v1/chat/completions", json=CHAT | {"stream": number % 2 == 0})
                    for number in range(8)
                )
            )
            assert [answer.status_code for answer in answers] == [200] * 8
            assert scaler.wakes
            triton.script, scaler.is_willing = ASLEEP, False
            triton.ready_models.discard("chat")
            late = await http.post("/v1/chat/completions", json=CHAT)
            assert (late.status_code, late.headers["retry-after"]) == (503, "5")
            assert late.json()["error"]["code"] == "model_asleep"
