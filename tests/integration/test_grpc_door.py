"""Triton's own client through the gateway's gRPC port, nothing changed but the address and a header."""

from __future__ import annotations

import asyncio
import queue
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np
import pytest
import tritonclient.grpc.aio as triton_aio
from sqlalchemy import select
from tritonclient.grpc import InferenceServerClient, InferInput, service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from gateway import rollout
from gateway.grpc_rpcs import METHODS, Kind, kind_of
from gateway.route_table import KIND
from gateway.testing import FakeTriton, RunningGateway, free_port, running_gateway
from ledger import schema
from ledger.keys import KeyStore
from ledger.revisions import RevisionStore
from ledger.store import Store, sqlite_url
from tests.integration.grpc_codes import code_of

pytestmark = pytest.mark.integration


@dataclass
class Rig:
    triton: FakeTriton
    gateway: RunningGateway
    address: str
    store: Store

    def rows(self) -> list[object]:
        with self.store.read() as connection:
            return list(connection.execute(select(schema.calls)).all())


@pytest.fixture
async def rig(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    url = sqlite_url(tmp_path / "ledger.db")
    settings = getattr(request, "param", {})
    with free_port() as port:
        async with (
            FakeTriton() as triton,
            running_gateway(
                triton.address, more_models=["v2"], ledger_url=url, grpc_port=port, **settings
            ) as gateway,
        ):
            store = Store.open(url)
            yield Rig(triton, gateway, f"127.0.0.1:{port}", store)
            store.close()


def texts(*values: str) -> list[InferInput]:
    tensor = InferInput("text_input", [len(values), 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[value.encode()] for value in values], dtype=np.object_))
    return [tensor]


async def test_tritonclient_asks_and_streams_as_it_does_at_triton(rig: Rig) -> None:
    """Unary, asyncio and the callback stream; Triton sees the request, the log has a row each."""

    def ask() -> list[str]:
        client = InferenceServerClient(rig.address)
        assert client.is_server_live()
        assert client.is_model_ready("chat")
        vectors = client.infer("embed", texts("one", "two")).as_numpy("embedding")
        assert vectors is not None
        assert len(vectors) == 2
        found: queue.Queue[object] = queue.Queue()
        client.start_stream(lambda result, error: found.put(error or result))
        client.async_stream_infer("chat", texts("hello"), request_id="r1", enable_empty_final_response=True)
        pieces = []
        while True:
            result = found.get(timeout=10)
            assert not isinstance(result, InferenceServerException), result
            response = result.get_response()  # type: ignore[attr-defined]
            if response.outputs:
                pieces.append(result.as_numpy("text_output")[0].decode())  # type: ignore[attr-defined]
            if response.parameters["triton_final_response"].bool_param:
                break
        client.stop_stream()
        client.close()
        return pieces

    assert await asyncio.to_thread(ask) == ["Hello", " world"]
    async with triton_aio.InferenceServerClient(rig.address) as client:
        await client.infer("embed", texts("three"))
    assert rig.triton.generates[0].text == "hello"
    assert await rig.gateway.stop() == 0
    found = Counter((row.operation, row.service, row.outcome) for row in rig.rows())  # type: ignore[attr-defined]
    assert found == {("infer", "embed", "ok"): 2, ("stream_infer", "chat", "ok"): 1}


async def test_routes_send_grpc_calls_to_their_version_too(rig: Rig) -> None:
    """A canary in one mode only is a trap (kserve#5335): the stream for `chat` reaches v2."""
    routes = rollout.promote(rollout.start({}, "chat", "v2", 5), "chat")
    RevisionStore(rig.store).put(KIND, rollout.write(routes), "test")
    await asyncio.sleep(0.7)
    async with grpc.aio.insecure_channel(rig.address) as channel:
        stream = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer()
        message = service_pb2.ModelInferRequest(model_name="chat", id="a")
        for tensor in texts("hello"):
            message.inputs.append(tensor._get_tensor())
            message.raw_input_contents.append(tensor._get_content())
        await stream.write(message)
        await stream.read()
        await stream.done_writing()
    assert [seen.model for seen in rig.triton.generates] == ["v2"]


async def test_what_a_request_is_refused_for_comes_as_triton_would_say_it(rig: Rig) -> None:
    """Unary: a status. On a stream: an error message, and the stream goes on."""
    async with grpc.aio.insecure_channel(rig.address) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for name, code in (
            ("nosuch", grpc.StatusCode.NOT_FOUND),
            ("../x", grpc.StatusCode.INVALID_ARGUMENT),
            ("", grpc.StatusCode.INVALID_ARGUMENT),
            ("x" * 300, grpc.StatusCode.INVALID_ARGUMENT),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.ModelInfer(service_pb2.ModelInferRequest(model_name=name))
            assert caught.value.code() is code
        stream = stub.ModelStreamInfer()
        await stream.write(service_pb2.ModelInferRequest(model_name="nosuch"))
        assert "not served here" in (await stream.read()).error_message
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF
        assert await stream.code() is grpc.StatusCode.OK


@pytest.mark.parametrize("rig", [{"requires_keys": True}], indirect=True)
async def test_every_rpc_asks_for_a_key_and_management_for_an_admins(rig: Rig) -> None:
    """Health needs none. Revoked, unknown and missing keys open nothing; an admin's opens management."""
    keys = KeyStore(rig.store)
    _, user = keys.create(tenant="acme", name="user", services=["chat"])
    _, admin = keys.create(tenant="ops", name="admin", roles=["admin"])
    gone_row, gone = keys.create(tenant="acme", name="gone")
    keys.revoke(gone_row.key_id)
    await asyncio.sleep(0.7)
    async with grpc.aio.insecure_channel(rig.address) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)

        for method in sorted(METHODS):
            kind = kind_of(method)
            if kind is Kind.HEALTH:
                continue
            for key in ("", "tg_0123456789abcdef_" + "x" * 43, gone):
                assert await code_of(stub, method, key, writes=False) is grpc.StatusCode.UNAUTHENTICATED, (
                    method
                )
            if kind is Kind.MANAGE:
                assert await code_of(stub, method, user) is grpc.StatusCode.PERMISSION_DENIED, method
                assert await code_of(stub, method, admin) is grpc.StatusCode.UNIMPLEMENTED, (
                    "the fake has not got it"
                )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.ModelInfer(
                service_pb2.ModelInferRequest(model_name="embed"), metadata=(("x-api-key", user),)
            )
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    said = rig.gateway.log_path.read_text()
    assert not any(text.split("_", 2)[2] in said for text in (user, admin, gone))


@pytest.mark.parametrize("rig", [{"service_limits": {"chat": {"tokens_per_min": 40}}}], indirect=True)
async def test_tokens_are_charged_at_the_grpc_door_too(rig: Rig) -> None:
    """A "hello" is 5 of the tiny model's tokens and may get 16; it got 2. So three of them fit 40: without settling
    it was one, without counting all. The log has the numbers, the client not one tensor more."""
    refused, answered = "", 0
    async with grpc.aio.insecure_channel(rig.address) as channel:
        stream = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer()
        while not refused:
            message = service_pb2.ModelInferRequest(model_name="chat", id=f"r{answered}")
            for tensor in texts("hello"):
                message.inputs.append(tensor._get_tensor())
                message.raw_input_contents.append(tensor._get_content())
            await stream.write(message)
            is_final = False
            while not is_final and not refused:
                reply = await stream.read()
                refused = reply.error_message
                is_final = reply.infer_response.parameters["triton_final_response"].bool_param
                assert {output.name for output in reply.infer_response.outputs} <= {
                    "text_output",
                    "finish_reason",
                }
            answered += is_final
        await stream.done_writing()
    assert "tokens per minute: 40 allowed" in refused
    assert answered == 3
    assert await rig.gateway.stop() == 0
    rows = [row for row in rig.rows() if row.outcome == "ok"]  # type: ignore[attr-defined]
    assert [(row.prompt_tokens, row.output_tokens) for row in rows] == [(5, 2)] * 3  # type: ignore[attr-defined]
