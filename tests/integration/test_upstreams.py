"""The gateway before several Tritons, some of which are not there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from sqlalchemy import select
from tritonclient.grpc import service_pb2, service_pb2_grpc

from gateway.testing import FakeTriton, RunningGateway, Script, free_port, running_gateway
from gateway.upstreams import addresses_of
from ledger import schema
from ledger.store import Store, sqlite_url
from tests.integration.test_grpc_door import texts

pytestmark = pytest.mark.integration

CHAT = {"model": "chat", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}


@dataclass
class Rig:
    gateway: RunningGateway
    door: str
    dead: str
    """An endpoint that nobody listens on: the first."""
    triton: FakeTriton
    ledger: str

    async def rows(self) -> list[Any]:
        """Of the call log, after the gateway's end."""
        assert await self.gateway.stop() == 0
        with contextlib.closing(Store.open(self.ledger)) as store, store.read() as connection:
            calls = schema.calls.c
            return list(connection.execute(select(schema.calls).order_by(calls.request_id, calls.attempt)))


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    url = sqlite_url(tmp_path / "ledger.db")
    with free_port() as dead, free_port() as port:
        async with (
            FakeTriton() as triton,
            running_gateway(
                f"127.0.0.1:{dead}",
                more_tritons=[triton.address],
                ledger_url=url,
                grpc_port=port,
                max_grpc_message_bytes=1_000_000,
            ) as gateway,
        ):
            yield Rig(gateway, f"127.0.0.1:{port}", f"127.0.0.1:{dead}", triton, url)


def infer_request(model: str, request_id: str = "") -> Any:
    message = service_pb2.ModelInferRequest(model_name=model, id=request_id)
    for tensor in texts("hello"):
        message.inputs.append(tensor._get_tensor())
        message.raw_input_contents.append(tensor._get_content())
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    return message


async def test_what_one_triton_can_not_be_asked_another_is_with_a_row_each(rig: Rig) -> None:
    """The first endpoint is dead. HTTP and gRPC, unary and streamed: all answered, two attempts each."""
    async with (
        httpx.AsyncClient(base_url=rig.gateway.url, timeout=30) as http,
        grpc.aio.insecure_channel(rig.door) as channel,
    ):
        headers = {"x-request-id": "a-chat"}
        answer = await http.post("/v1/chat/completions", json=CHAT, headers=headers)
        assert answer.json()["choices"][0]["message"]["content"] == "Hello world"
        # Each call that ends makes the dead one the less recently chosen of two idle endpoints.
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        reply = await stub.ModelInfer(infer_request("embed", "b-infer"))
        assert reply.outputs[0].name == "embedding"
        stream = stub.ModelStreamInfer()
        await stream.write(infer_request("chat", "c-stream"))
        await stream.done_writing()
        assert [message.infer_response.id async for message in stream] == ["c-stream"] * 2
    found = [(row.request_id, row.attempt, row.endpoint, row.outcome) for row in await rig.rows()]
    assert found == [
        (name, attempt, endpoint, outcome)
        for name in ("a-chat", "b-infer", "c-stream")
        for attempt, endpoint, outcome in ((1, rig.dead, "error"), (2, rig.triton.address, "ok"))
    ]


async def test_after_three_failures_the_dead_one_is_left_alone(rig: Rig) -> None:
    """Twelve calls in a row within the second that it is out: three of them were tried twice."""
    async with grpc.aio.insecure_channel(rig.door) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for _ in range(12):
            await stub.ModelInfer(infer_request("embed"))
    rows = await rig.rows()
    assert sum(row.outcome == "ok" for row in rows) == 12
    assert 3 <= sum(row.endpoint == rig.dead for row in rows) <= 4


async def test_a_stream_that_has_answered_is_never_begun_again(rig: Rig) -> None:
    """It breaks after one piece: the client is told, and nobody else is asked."""
    rig.triton.script = Script(pieces=("Hello",), code=grpc.StatusCode.UNAVAILABLE, error="gone")
    async with grpc.aio.insecure_channel(rig.door) as channel:
        stream = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer()
        await stream.write(infer_request("chat", "x"))
        assert (await stream.read()).infer_response.id == "x"
        assert await stream.code() is grpc.StatusCode.UNAVAILABLE
    assert len(rig.triton.generates) == 1
    assert [row.outcome for row in await rig.rows()] == ["error", "error"]


async def test_a_chat_whose_client_has_seen_nothing_is_begun_again_in_the_middle() -> None:
    """One Triton breaks after half an answer. Not streamed, that half is thrown away; streamed, it is an error."""
    half = Script(pieces=("Half",), code=grpc.StatusCode.UNAVAILABLE, error="gone")
    async with (
        FakeTriton(script=half) as broken,
        FakeTriton() as whole,
        running_gateway(broken.address, more_tritons=[whole.address]) as gateway,
        httpx.AsyncClient(base_url=gateway.url, timeout=30) as http,
    ):
        answer = (await http.post("/v1/chat/completions", json=CHAT)).json()
        assert answer["choices"][0]["message"]["content"] == "Hello world"
        assert answer["usage"]["completion_tokens"] == 2
        assert (len(broken.generates), len(whole.generates)) == (1, 1)
        streamed = (await http.post("/v1/chat/completions", json={**CHAT, "stream": True})).text
        assert "Half" in streamed
        assert "upstream_unavailable" in streamed
        assert (len(broken.generates), len(whole.generates)) == (2, 1)


async def test_half_open_streams_cost_triton_nothing_and_hold_nobody_up(rig: Rig) -> None:
    """300 streams that ask nothing: Triton sees none of them, others are served meanwhile."""
    async with (
        grpc.aio.insecure_channel(rig.door) as channel,
        grpc.aio.insecure_channel(rig.door, options=[("grpc.use_local_subchannel_pool", 1)]) as other,
    ):
        idle = [service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer() for _ in range(300)]
        await asyncio.gather(*(stream.wait_for_connection() for stream in idle))
        stub = service_pb2_grpc.GRPCInferenceServiceStub(other)
        for _ in range(20):
            await stub.ModelInfer(infer_request("embed"))
        assert rig.triton.num_active == 0
        for stream in idle:
            stream.cancel()


async def test_messages_and_metadata_that_are_too_long_are_refused(rig: Rig) -> None:
    """2 MB where 1 MB is taken, 64 KiB of metadata where 16 are; the next call of the same connection works."""
    async with grpc.aio.insecure_channel(rig.door) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        long = infer_request("embed")
        long.raw_input_contents.append(bytes(2_000_000))
        for request, metadata in ((long, ()), (infer_request("embed"), (("x-long", "x" * 65536),))):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.ModelInfer(request, metadata=metadata)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await stub.ModelInfer(infer_request("embed"))


async def test_a_name_stands_for_all_its_addresses() -> None:
    """localhost, of one family or both; what does not resolve is an error, not nothing."""
    found = await addresses_of("dns:///localhost:8001")
    assert set(found) <= {"127.0.0.1:8001", "[::1]:8001"}
    assert found
    with pytest.raises(OSError, match=r".+"):
        await addresses_of("dns:///nosuch.invalid:8001")
