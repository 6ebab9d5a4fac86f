"""A server that does what a script says, to test load generators with: OpenAI over HTTP, KServe v2 over gRPC.

Every answer has a known truth. It computes nothing, stamps what it sends, and keeps the stamps for whoever asks.
`python -m loadtest.mock_server SCRIPT_JSON` prints `ready HTTP_PORT GRPC_PORT`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any, Literal

import grpc
import msgspec
from aiohttp import web
from tritonclient.grpc import service_pb2, service_pb2_grpc

from loadtest.generating.precise_loop import precise_loop, run_in_real_time

READY = "ready"
ID_HEADER = "x-mock-id"
"""A caller that sends one finds the stamps of its answer under it."""


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds are from a request's arrival, except those of the stall, which are from the first request's."""

    first_s: float = 0.005
    """To the first token, or to the whole answer of a unary call."""
    every_s: float = 0.02
    num_chunks: int = 4
    tokens_per_chunk: int = 1
    stall_from_s: float = 0.0
    stall_to_s: float = 0.0
    """Between these nothing is answered; what was due is answered at the end."""
    fail_every: int = 0
    """Each so many-th request fails; 1: all."""
    fail_how: Literal["refuse", "cut", "short", "silent"] = "refuse"
    """At once; in the middle of the stream; there too, but as if that were its end; by never answering."""
    dies_at_s: float = 0.0
    """From the first request's arrival; 0: never."""


class Mock:
    """What both doors share."""

    def __init__(self, script: Script) -> None:
        self.follow(script)

    def follow(self, script: Script) -> None:
        """From now on; the next request is the first."""
        self.script = script
        self.stamps_s: dict[str, list[float]] = defaultdict(list)
        self._first_s: float | None = None
        self._numbers = itertools.count(1)

    def arrived(self) -> tuple[float, bool]:
        """When, and whether this one fails."""
        now_s = time.monotonic()
        if self._first_s is None:
            self._first_s = now_s
            if self.script.dies_at_s:
                asyncio.get_running_loop().call_later(self.script.dies_at_s, os._exit, 1)
        every = self.script.fail_every
        return now_s, bool(every) and next(self._numbers) % every == 0

    async def until(self, due_s: float) -> None:
        """The moment, or the end of the stall that it falls into."""
        since_s = due_s - (self._first_s or due_s)
        if self.script.stall_from_s <= since_s < self.script.stall_to_s:
            due_s += self.script.stall_to_s - since_s
        await asyncio.sleep(due_s - time.monotonic())

    async def chunks(self, name: str) -> AsyncIterator[int]:
        """The number of each chunk, at its moment. Raises Failed."""
        arrived_s, fails = self.arrived()
        if fails:
            await self.fail(first=True)
        for number in range(self.script.num_chunks):
            if fails and number == self.script.num_chunks // 2:
                await self.fail(first=False)
            await self.until(arrived_s + self.script.first_s + number * self.script.every_s)
            if name:
                self.stamps_s[name].append(time.monotonic())
            yield number

    async def unary(self) -> None:
        arrived_s, fails = self.arrived()
        if fails:
            await self.fail(first=True)
        await self.until(arrived_s + self.script.first_s)

    async def fail(self, *, first: bool) -> None:
        if self.script.fail_how == "silent":
            await asyncio.Event().wait()
        if first == (self.script.fail_how == "refuse"):
            raise Failed


class Failed(Exception):
    """By the script."""


class HttpDoor:
    """/v1/chat/completions, /v1/embeddings, and for the tester /stamps and /script."""

    def __init__(self, mock: Mock) -> None:
        self._mock = mock
        self.app = web.Application()
        self.app.router.add_post("/v1/chat/completions", self.chat)
        self.app.router.add_post("/v1/embeddings", self.embed)
        self.app.router.add_get("/stamps", self.stamps)
        self.app.router.add_post("/script", self.script)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        await request.read()
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        begun = False
        try:
            async for number in self._mock.chunks(request.headers.get(ID_HEADER, "")):
                if not begun:
                    begun = True
                    await response.prepare(request)
                    await response.write(_event({"role": "assistant", "content": ""}))
                await response.write(_event({"content": f"word{number} "}))
        except Failed:
            if not begun:
                return web.json_response({"error": {"message": "scripted"}}, status=503)
            if self._mock.script.fail_how == "cut" and request.transport is not None:
                request.transport.abort()
            return response
        script = self._mock.script
        tokens = script.num_chunks * script.tokens_per_chunk
        await response.write(
            _event({}, "length")
            + _data({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": tokens}})
            + b"data: [DONE]\n\n"
        )
        return response

    async def embed(self, request: web.Request) -> web.Response:
        await request.read()
        try:
            await self._mock.unary()
        except Failed:
            return web.json_response({"error": {"message": "scripted"}}, status=503)
        data = [{"object": "embedding", "index": 0, "embedding": [0.0, 1.0]}]
        return web.json_response({"object": "list", "data": data, "usage": {"prompt_tokens": 3}})

    async def script(self, request: web.Request) -> web.Response:
        self._mock.follow(msgspec.json.decode(await request.read(), type=Script))
        return web.Response()

    async def stamps(self, request: web.Request) -> web.Response:
        return web.json_response(self._mock.stamps_s)


class GrpcDoor(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]  # generated, untyped
    """ModelStreamInfer and ModelInfer."""

    def __init__(self, mock: Mock) -> None:
        self._mock = mock

    async def ModelStreamInfer(self, requests: Any, context: Any) -> Any:
        name = dict(context.invocation_metadata() or ()).get(ID_HEADER, "")
        async for request in requests:
            try:
                async for number in self._mock.chunks(name):
                    yield _reply(request.id, f"word{number} ", self._mock.script.tokens_per_chunk)
            except Failed:
                if self._mock.script.fail_how == "short":
                    return
                yield service_pb2.ModelStreamInferResponse(error_message="scripted")
                continue
            final = service_pb2.ModelStreamInferResponse()
            final.infer_response.id = request.id
            final.infer_response.parameters["triton_final_response"].bool_param = True
            yield final

    async def ModelInfer(self, request: Any, context: Any) -> Any:
        try:
            await self._mock.unary()
        except Failed:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "scripted")
        return service_pb2.ModelInferResponse(model_name=request.model_name, id=request.id)

    async def ServerLive(self, request: Any, context: Any) -> Any:
        return service_pb2.ServerLiveResponse(live=True)


def _reply(request_id: str, text: str, num_tokens: int) -> Any:
    message = service_pb2.ModelStreamInferResponse()
    response = message.infer_response
    response.id = request_id
    raw = text.encode()
    response.outputs.add(name="text_output", datatype="BYTES", shape=[1])
    response.outputs.add(name="num_output_tokens", datatype="UINT32", shape=[1])
    response.raw_output_contents.append(len(raw).to_bytes(4, "little") + raw)
    response.raw_output_contents.append(num_tokens.to_bytes(4, "little"))
    return message


def _event(delta: dict[str, str], finish_reason: str | None = None) -> bytes:
    return _data({"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]})


def _data(value: dict[str, Any]) -> bytes:
    chunk = {"id": "mock", "object": "chat.completion.chunk", "created": 0, "model": "mock", **value}
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"


async def _serve(script: Script) -> None:
    mock = Mock(script)
    runner = web.AppRunner(HttpDoor(mock).app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
    await site.start()
    http_port = runner.addresses[0][1]
    server = grpc.aio.server()
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(GrpcDoor(mock), server)
    grpc_port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(READY, http_port, grpc_port, flush=True)
    await asyncio.Event().wait()


def main() -> None:
    script = msgspec.json.decode(sys.argv[1], type=Script)
    run_in_real_time()
    loop = precise_loop()
    asyncio.set_event_loop(loop)
    with contextlib.suppress(KeyboardInterrupt):
        loop.run_until_complete(_serve(script))


if __name__ == "__main__":
    main()
