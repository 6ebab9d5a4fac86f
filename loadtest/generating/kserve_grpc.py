"""KServe v2 over gRPC: one ModelStreamInfer per request for streams, ModelInfer for the rest.

A stream each, so that a cancel ends that request alone and each carries its own trace context. A call that has
answered whole is never cancelled, and a unary one not at all: Triton 2.51 leaks the one and can crash on the other
(ARCHITECTURE.md, facts 11 and 12).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import msgspec
from tritonclient.grpc import service_pb2, service_pb2_grpc

from loadtest.call import Call
from loadtest.generating.answer import Answer, CallFailed
from loadtest.generating.messages import Target
from loadtest.generating.sender import WARM_TIMEOUT_S, headers_of, key_headers
from loadtest.generating.tensors import bytes_element, raw_of

END_WAIT_S = 1.0
_FLAGS = (
    "exclude_input_in_output",
    "return_finish_reason",
    "return_num_input_tokens",
    "return_num_output_tokens",
    "return_num_cached_tokens",
)
_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # A server that died is found again within a second, and meanwhile calls fail at once.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
]


class GrpcChannel:
    """The connection that both senders share. Make it inside the event loop."""

    def __init__(self, target: Target) -> None:
        self.target = target
        if target.is_grpc_tls:
            files = (target.ca_file, target.cert_key_file, target.cert_file)
            pems = [Path(name).read_bytes() if name else None for name in files]
            credentials = grpc.ssl_channel_credentials(*pems)
            self.channel = grpc.aio.secure_channel(target.grpc, credentials, options=_OPTIONS)
        else:
            self.channel = grpc.aio.insecure_channel(target.grpc, options=_OPTIONS)
        self.stub: Any = service_pb2_grpc.GRPCInferenceServiceStub(self.channel)

    async def warm(self) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, TimeoutError):
            async with asyncio.timeout(WARM_TIMEOUT_S):
                metadata = tuple(key_headers(self.target))
                await self.stub.ServerLive(service_pb2.ServerLiveRequest(), metadata=metadata)

    async def close(self) -> None:
        await self.channel.close()


class GenerateSender:
    """`grpc_generate`: the tensors of Triton's vLLM backend."""

    def __init__(self, channel: GrpcChannel) -> None:
        self._channel = channel
        self._ending: set[asyncio.Future[None]] = set()

    def prepare(self, call: Call, earlier: Sequence[tuple[Call, str]] = ()) -> Any:
        text = "".join(f"{''.join(turn.texts)}{said}" for turn, said in earlier) + "".join(call.texts)
        request = service_pb2.ModelInferRequest(model_name=call.service)
        request.parameters["triton_enable_empty_final_response"].bool_param = True
        _add(request, "text_input", "BYTES", [1], bytes_element(text))
        _add(request, "sampling_parameters", "BYTES", [1], bytes_element(_sampling(call)))
        for name in ("stream", *_FLAGS):
            _add(request, name, "BOOL", [1], b"\1")
        return request

    async def send(self, call: Call, message: Any, answer: Answer) -> None:
        metadata = tuple(headers_of(call, self._channel.target))
        answer.sent()
        stream = self._channel.stub.ModelStreamInfer(metadata=metadata)
        is_final = False
        try:
            await stream.write(message)
            while not is_final:
                reply = await stream.read()
                is_final = _note(reply, answer, time.monotonic())
        except grpc.aio.AioRpcError as exc:
            raise CallFailed(f"grpc {exc.code().name}: {exc.details()}") from exc
        except asyncio.InvalidStateError as exc:
            # What `write` says of a stream that the server has ended: the status tells why.
            raise CallFailed(f"grpc {(await stream.code()).name}: {await stream.details()}") from exc
        finally:
            if is_final:
                ending = asyncio.ensure_future(_end(stream))
                self._ending.add(ending)
                ending.add_done_callback(self._ending.discard)
            else:
                stream.cancel()

    async def close(self) -> None:
        if self._ending:
            await asyncio.wait(self._ending, timeout=END_WAIT_S)


class TensorsSender:
    """`grpc_tensors`."""

    def __init__(self, channel: GrpcChannel) -> None:
        self._channel = channel
        self._left: set[asyncio.Future[Any]] = set()

    def prepare(self, call: Call, earlier: Sequence[tuple[Call, str]] = ()) -> Any:
        request = service_pb2.ModelInferRequest(model_name=call.service)
        for tensor in call.tensors:
            _add(request, tensor.name, tensor.datatype, tensor.shape, raw_of(tensor))
        return request

    async def send(self, call: Call, message: Any, answer: Answer) -> None:
        metadata = tuple(headers_of(call, self._channel.target))
        answer.sent()
        running = asyncio.ensure_future(_awaited(self._channel.stub.ModelInfer(message, metadata=metadata)))
        self._left.add(running)
        running.add_done_callback(self._forget)
        try:
            await asyncio.shield(running)
        except grpc.aio.AioRpcError as exc:
            raise CallFailed(f"grpc {exc.code().name}: {exc.details()}") from exc
        answer.ended_unary(time.monotonic())

    def _forget(self, call: asyncio.Future[Any]) -> None:
        self._left.discard(call)
        if not call.cancelled():
            call.exception()  # fetched: nobody waits for a call that was given up

    async def close(self) -> None:
        """What is still open ends with the process."""


def _note(reply: Any, answer: Answer, now_s: float) -> bool:
    """Whether it was the last response. Raises CallFailed."""
    if reply is grpc.aio.EOF:
        raise CallFailed("cut: the stream ended before its final response")
    if reply.error_message:
        raise CallFailed(f"stream error: {reply.error_message}")
    response = reply.infer_response
    raw = dict(zip((output.name for output in response.outputs), response.raw_output_contents, strict=False))
    text, num_tokens = raw.get("text_output", b"")[4:], _count(raw, "num_output_tokens")
    # Of a server that does not count, text is what shows a token.
    if num_tokens or (text and "num_output_tokens" not in raw):
        answer.chunk(now_s, num_tokens or None)
    answer.text.append(text.decode(errors="replace"))
    answer.output_tokens += num_tokens
    answer.input_tokens = _count(raw, "num_input_tokens") or answer.input_tokens
    answer.cached_tokens = _count(raw, "num_cached_tokens") or answer.cached_tokens
    is_final: bool = response.parameters["triton_final_response"].bool_param
    if is_final:
        answer.ended(now_s)
    return is_final


def _count(raw: dict[str, bytes], name: str) -> int:
    """The first number of a UINT32 tensor; 0 where there is none."""
    return int.from_bytes(raw.get(name, b"")[:4], "little")


def _sampling(call: Call) -> bytes:
    values: dict[str, Any] = {"temperature": call.temperature, "seed": call.seed}
    if call.max_tokens:
        values["max_tokens"] = call.max_tokens
    if call.force_length:
        values |= {"ignore_eos": True, "min_tokens": call.max_tokens}
    return msgspec.json.encode(values)


def _add(request: Any, name: str, datatype: str, shape: Sequence[int], raw: bytes) -> None:
    request.inputs.add(name=name, datatype=datatype, shape=shape)
    request.raw_input_contents.append(raw)


async def _awaited(call: Any) -> Any:
    return await call


async def _end(stream: Any) -> None:
    """Lets the server close the stream in its own order. The answer is whole: what goes wrong here is nothing."""
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError, TimeoutError):
        async with asyncio.timeout(END_WAIT_S):
            await stream.done_writing()
            while await stream.read() is not grpc.aio.EOF:
                pass
