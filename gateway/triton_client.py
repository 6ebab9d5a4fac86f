"""The gateway's only way to Triton: raw KServe v2 messages over a few grpc.aio channels.

One bidirectional stream per generate request, so that cancelling the stream cancels that request. Unary calls
carry no deadline and are never cancelled: Triton 2.51 can crash on both (ARCHITECTURE.md, fact 12); who stops
waiting leaves the call running.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from contracts.tracing.context import TRACEPARENT
from contracts.tracing.timing import RETURN_TIMING_PARAMETER, TIMING_OUTPUT, Timing, decode_timing
from contracts.triton_key import grpc_metadata
from gateway.errors import DeadlineExceeded, GatewayError, UpstreamFailed, from_triton
from gateway.logprobs import TokenLogprob, read_logprobs

FLOAT_BYTES = 4
DEADLINE_SLACK_S = 0.25
"""The engine ends a request at its deadline with a text of its own; the gateway's timer is the backstop."""
CLOSE_WAIT_S = 5.0
END_WAIT_S = 1.0

_CHANNEL_OPTIONS = [
    # Triton allows 2 GiB. What is too long is refused on the way in; what Triton answers always passes.
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # Without this, channels to one address share one connection.
    ("grpc.use_local_subchannel_pool", 1),
    # A restarted Triton is found again within a second, not within gRPC's two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
]

_ALWAYS_TRUE = (
    "exclude_input_in_output",
    "return_finish_reason",
    "return_num_output_tokens",
    "return_num_cached_tokens",
)

_T = TypeVar("_T")


class Attempt(Protocol):
    """One try; `gateway.tracing.Attempt` is one."""

    @property
    def traceparent(self) -> str: ...
    def note(self, timing: Timing) -> None: ...
    def end(self, error: GatewayError | None = None) -> None: ...


class Attempts(Protocol):
    """Who keeps the record of a call; `Call` is one."""

    def begin_at(self, endpoint: str) -> Attempt: ...
    def try_again(self, error: GatewayError) -> None: ...


@dataclass(frozen=True)
class GenerateCall:
    """One prompt for a generate model."""

    model: str
    request_id: str
    text: str
    sampling: bytes
    """The `sampling_parameters` tensor: JSON."""
    is_stream: bool
    deadline_unix_s: float | None = None
    session: str | None = None
    """Calls of one session go to one Triton, where the prefix of the last is."""
    num_tokens: int = 0
    """Of the prompt and the answer, at most: how much it weighs among several Tritons."""
    is_whole: bool = False
    """Its client has nothing before it has all, so it may be begun again after its first replies too."""
    priority: int = 0
    """Among what waits in the engine, the highest first."""
    attempts: Attempts | None = field(default=None, compare=False)


@dataclass(frozen=True)
class GenerateReply:
    """One response of the stream."""

    text: str
    num_output_tokens: int
    finish_reason: str | None
    """Set on the last one that carries text."""
    num_cached_tokens: int = 0
    """Of the prompt."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """Of `num_output_tokens`, when the sampling settings ask for them."""
    timing: Timing | None = None
    """On the last one: where its time went in the engine."""
    begins_again: bool = False
    """At another Triton: what came before does not count. Nothing else is set."""


BEGINS_AGAIN = GenerateReply("", 0, None, begins_again=True)


class TritonClient:
    """Make it inside the event loop that uses it."""

    def __init__(self, target: str, num_channels: int = 1, key: str = "") -> None:
        """`key` opens what that Triton restricts."""
        self._metadata = grpc_metadata(key)
        self._channels = [
            grpc.aio.insecure_channel(target, options=[*_CHANNEL_OPTIONS, ("tidegate.channel", index)])
            for index in range(num_channels)
        ]
        self._turns = itertools.cycle(self._channels)
        self._unary_by_path: dict[str, Iterator[Any]] = {}
        stubs = [service_pb2_grpc.GRPCInferenceServiceStub(channel) for channel in self._channels]
        self._stubs = itertools.cycle(stubs)
        self._kept_calls: set[asyncio.Future[Any]] = set()

    def channel(self) -> Any:
        """One of its connections, in turn, for messages that pass as bytes."""
        return next(self._turns)

    def unary(self, path: str) -> Any:
        """The unary RPC of that path over one of its connections, in turn; bytes in, bytes out."""
        if path not in self._unary_by_path:
            self._unary_by_path[path] = itertools.cycle([each.unary_unary(path) for each in self._channels])
        return next(self._unary_by_path[path])

    async def generate(self, call: GenerateCall, traceparent: str = "") -> AsyncGenerator[GenerateReply]:
        """Yields replies until the final one. Raises GatewayError; a stream that ends early is UpstreamFailed.

        With a `traceparent` Triton and the engine trace it too.

        Closing the generator, or cancelling the task that runs it, cancels the request at Triton.
        """
        deadline = _on_loop_clock(call.deadline_unix_s)
        stream = next(self._stubs).ModelStreamInfer(metadata=self._with(traceparent))
        is_answered = False
        try:
            await stream.write(_generate_request(call, traceparent))
            is_final = False
            while not is_final:
                async with asyncio.timeout_at(deadline):
                    message = await stream.read()
                if message is grpc.aio.EOF:
                    raise UpstreamFailed("the stream from Triton ended before the answer did")
                if message.error_message:
                    raise from_triton(message.error_message)
                response = message.infer_response
                is_final = response.parameters["triton_final_response"].bool_param
                if response.outputs:
                    reply = _generate_reply(response)
                    is_answered = reply.finish_reason is not None
                    yield reply
        except grpc.aio.AioRpcError as exc:
            raise from_triton(exc.details() or "", exc.code()) from exc
        except TimeoutError as exc:
            raise DeadlineExceeded("the request's time ran out") from exc
        finally:
            if is_answered:
                # Triton never releases a stream whose cancel meets its final response (ARCHITECTURE.md, fact 11).
                self._keep(asyncio.ensure_future(_end(stream)))
            else:
                stream.cancel()

    async def embed(
        self,
        model: str,
        request_id: str,
        texts: Sequence[str],
        deadline_unix_s: float | None = None,
        traceparent: str = "",
    ) -> list[bytes]:
        """One float32 vector a text, little-endian. Raises GatewayError."""
        request = service_pb2.ModelInferRequest(model_name=model, id=request_id)
        _add_input(request, "text_input", "BYTES", [len(texts), 1], b"".join(map(_bytes_element, texts)))
        _set_deadline(request, deadline_unix_s)
        _set_traceparent(request, traceparent)
        asked = self._ask("ModelInfer", request, traceparent)
        response = await self._unary(asked, _on_loop_clock(deadline_unix_s))
        return _rows(response, len(texts))

    async def is_live(self, timeout_s: float) -> bool:
        return await self._says_yes(self._ask("ServerLive", service_pb2.ServerLiveRequest()), timeout_s)

    async def is_model_ready(self, model: str, timeout_s: float) -> bool:
        request = service_pb2.ModelReadyRequest(name=model)
        return await self._says_yes(self._ask("ModelReady", request), timeout_s)

    async def close(self) -> None:
        """Waits a little for calls that nobody awaits any more."""
        if self._kept_calls:
            await asyncio.wait(self._kept_calls, timeout=CLOSE_WAIT_S)
        for channel in self._channels:
            await channel.close()

    def _ask(self, method: str, request: Any, traceparent: str = "") -> Awaitable[Any]:
        call: Awaitable[Any] = getattr(next(self._stubs), method)(request, metadata=self._with(traceparent))
        return call

    def _with(self, traceparent: str) -> tuple[tuple[str, str], ...]:
        return (*self._metadata, (TRACEPARENT, traceparent)) if traceparent else self._metadata

    async def _says_yes(self, call: Awaitable[Any], timeout_s: float) -> bool:
        try:
            reply = await self._unary(call, asyncio.get_running_loop().time() + timeout_s)
        except GatewayError:
            return False
        # ServerLive answers with `live`, ModelReady with `ready`.
        return bool(getattr(reply, "live", False) or getattr(reply, "ready", False))

    async def _unary(self, call: Awaitable[_T], deadline: float | None) -> _T:
        running = asyncio.ensure_future(_awaited(call))
        self._keep(running)
        try:
            async with asyncio.timeout_at(deadline):
                return await asyncio.shield(running)
        except grpc.aio.AioRpcError as exc:
            raise from_triton(exc.details() or "", exc.code()) from exc
        except TimeoutError as exc:
            raise DeadlineExceeded("the request's time ran out") from exc

    def _keep(self, call: asyncio.Future[Any]) -> None:
        """What must run to its end even if nobody waits for it any more."""
        self._kept_calls.add(call)
        call.add_done_callback(self._forget)

    def _forget(self, call: asyncio.Future[Any]) -> None:
        self._kept_calls.discard(call)
        if not call.cancelled():
            call.exception()  # fetched, so that asyncio does not complain about calls nobody waits for


async def _end(stream: Any) -> None:
    """Lets Triton close the stream in its own order. The answer is whole: what goes wrong here matters no more."""
    with contextlib.suppress(grpc.aio.AioRpcError, TimeoutError):
        async with asyncio.timeout(END_WAIT_S):
            await stream.done_writing()
            while await stream.read() is not grpc.aio.EOF:
                pass


async def _awaited(call: Awaitable[_T]) -> _T:
    return await call


async def collect(
    replies: AsyncIterator[GenerateReply], note: Callable[[GenerateReply], None] = lambda reply: None
) -> GenerateReply:
    """All replies as one; each is noted when it comes. Raises UpstreamFailed when none says why it ended."""
    texts: list[str] = []
    logprobs: list[TokenLogprob] = []
    num_output_tokens = num_cached_tokens = 0
    finish_reason = None
    async for reply in replies:
        if reply.begins_again:
            texts, logprobs, num_output_tokens, num_cached_tokens, finish_reason = [], [], 0, 0, None
            continue
        note(reply)
        texts.append(reply.text)
        num_output_tokens += reply.num_output_tokens
        num_cached_tokens = max(num_cached_tokens, reply.num_cached_tokens)
        logprobs += reply.logprobs
        finish_reason = reply.finish_reason or finish_reason
    check_finished(finish_reason)
    return GenerateReply("".join(texts), num_output_tokens, finish_reason, num_cached_tokens, tuple(logprobs))


def check_finished(finish_reason: str | None) -> None:
    """A stream that ended in order but without a finish reason was cut: it must not look like success."""
    if finish_reason is None:
        raise UpstreamFailed("the answer was cut: Triton ended it without a finish reason")


def _generate_request(call: GenerateCall, traceparent: str) -> Any:
    request = service_pb2.ModelInferRequest(model_name=call.model, id=call.request_id)
    # Otherwise the end of a stream that ends without a last response is invisible.
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    request.parameters[RETURN_TIMING_PARAMETER].bool_param = True
    _set_deadline(request, call.deadline_unix_s)
    if call.priority:
        request.parameters["request_priority"].int64_param = call.priority
    _set_traceparent(request, traceparent)
    _add_input(request, "text_input", "BYTES", [1], _bytes_element(call.text))
    _add_input(request, "sampling_parameters", "BYTES", [1], _bytes_element(call.sampling))
    _add_input(request, "stream", "BOOL", [1], bytes([call.is_stream]))
    for flag in _ALWAYS_TRUE:
        _add_input(request, flag, "BOOL", [1], b"\1")
    return request


def _set_deadline(request: Any, deadline_unix_s: float | None) -> None:
    if deadline_unix_s is not None:
        request.parameters["deadline_unix_ms"].int64_param = int(deadline_unix_s * 1000)


def _set_traceparent(request: Any, traceparent: str) -> None:
    """For the engine, should Triton not trace."""
    if traceparent:
        request.parameters[TRACEPARENT].string_param = traceparent


def _add_input(request: Any, name: str, datatype: str, shape: list[int], raw: bytes) -> None:
    request.inputs.add(name=name, datatype=datatype, shape=shape)
    request.raw_input_contents.append(raw)


def _bytes_element(value: str | bytes) -> bytes:
    """A BYTES element on the wire: its length, little-endian, then itself."""
    raw = value.encode() if isinstance(value, str) else value
    return len(raw).to_bytes(4, "little") + raw


def _generate_reply(response: Any) -> GenerateReply:
    raw = {
        tensor.name: data
        for tensor, data in zip(response.outputs, response.raw_output_contents, strict=False)
    }
    try:
        return GenerateReply(
            text=_element_text(raw["text_output"]),
            num_output_tokens=_count(raw.get("num_output_tokens", b"")),
            finish_reason=_finish_reason(raw.get("finish_reason", b"")),
            num_cached_tokens=_count(raw.get("num_cached_tokens", b"")),
            logprobs=read_logprobs(_element(raw["logprobs"])) if "logprobs" in raw else (),
            timing=decode_timing(_element(raw[TIMING_OUTPUT])) if TIMING_OUTPUT in raw else None,
        )
    except (KeyError, ValueError) as exc:
        raise UpstreamFailed(f"Triton's answer can't be read: {type(exc).__name__}: {exc}") from exc


def _count(raw: bytes) -> int:
    """The first number of a UINT32 tensor; 0 where there is none."""
    return int.from_bytes(raw[:4], "little")


def _element_text(raw: bytes) -> str:
    return _element(raw).decode()


def _element(raw: bytes) -> bytes:
    """A one-element BYTES tensor."""
    length = int.from_bytes(raw[:4], "little")
    if len(raw) != 4 + length:
        raise ValueError(f"a BYTES element of {length} bytes came with {len(raw) - 4}")
    return raw[4:]


def _finish_reason(raw: bytes) -> str | None:
    """Triton's vLLM backend writes Python's None into responses that are not the last."""
    reason = _element_text(raw) if raw else ""
    return None if reason in ("", "None", "null") else reason


def _rows(response: Any, count: int) -> list[bytes]:
    for tensor, raw in zip(response.outputs, response.raw_output_contents, strict=False):
        row_bytes = len(raw) // count
        if tensor.name == "embedding" and row_bytes and len(raw) == count * row_bytes:
            return [raw[at : at + row_bytes] for at in range(0, len(raw), row_bytes)]
    raise UpstreamFailed(f"Triton's answer has no embedding for each of {count} texts")


def _on_loop_clock(deadline_unix_s: float | None) -> float | None:
    """A wall-clock deadline on the event loop's clock, with the slack."""
    if deadline_unix_s is None:
        return None
    return asyncio.get_running_loop().time() + deadline_unix_s - time.time() + DEADLINE_SLACK_S
