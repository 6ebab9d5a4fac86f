"""KServe v2 over gRPC: Triton's own service, unchanged, behind keys, limits, routes and the call log.

Messages pass as bytes. Deadlines and cancels of unary calls end here and are not passed on, for they can crash this
Triton; a stream is cancelled only while it owes an answer (ARCHITECTURE.md, facts 11 and 12).
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any

import grpc

from contracts.tracing.context import TRACEPARENT, TRACESTATE
from gateway.authentication import KEY_HEADER, require
from gateway.balancing import Outcome
from gateway.call import Call
from gateway.errors import ClientGone, GatewayError, InternalError, from_triton
from gateway.grpc_rpcs import METHODS, SERVICE, Kind, kind_of
from gateway.grpc_stream import Connection, ProxiedStream, code_of, fail, refuse, traced_by
from gateway.grpc_wire import read_request, with_model
from gateway.pipeline import Pipeline
from gateway.upstreams import Lease, Upstreams, is_unreachable

logger = logging.getLogger("gateway")

SESSION_KEY = "x-tidegate-session"
REQUEST_ID_KEY = "x-request-id"
MAX_ID_CHARS = 128
"""In our logs; the wire keeps the whole."""
CLOSE_WAIT_S = 5.0
_OURS = frozenset({"authorization", KEY_HEADER, SESSION_KEY, TRACEPARENT, TRACESTATE})
_HOP_BY_HOP = ("grpc-", ":", "te", "user-agent", "content-type", "triton-grpc-protocol-")
"""Also the header that opens Triton's restricted calls: only the gateway may send it."""

Metadata = Sequence[tuple[str, str | bytes]]


class GrpcDoor(grpc.GenericRpcHandler):
    """Give it to `server.add_generic_rpc_handlers`."""

    def __init__(self, pipeline: Pipeline, upstreams: Upstreams, extra: Metadata = ()) -> None:
        """`extra`: metadata for Triton alone."""
        self._pipeline = pipeline
        self._upstreams = upstreams
        self._extra = tuple(extra)
        self._kept: set[asyncio.Future[Any]] = set()

    def service(self, handler_call_details: Any) -> Any:
        service, _, method = handler_call_details.method.lstrip("/").partition("/")
        if service != SERVICE or method not in METHODS:
            return None
        kind = kind_of(method)
        if method == "ModelStreamInfer":
            return grpc.stream_stream_rpc_method_handler(self._stream)
        if kind is Kind.INFER:
            return grpc.unary_unary_rpc_method_handler(self._infer)

        async def pass_on(request: bytes, context: Any) -> bytes:
            return await self._pass_on(method, kind, request, context)

        return grpc.unary_unary_rpc_method_handler(pass_on)

    async def close(self) -> None:
        """Waits a little for calls that nobody awaits any more."""
        if self._kept:
            await asyncio.wait(self._kept, timeout=CLOSE_WAIT_S)

    async def _pass_on(self, method: str, kind: Kind | None, request: bytes, context: Any) -> bytes:
        """Everything that infers nothing."""
        headers = _headers(context)
        call = Call(_request_id(headers), "grpc")
        try:
            if kind is not Kind.HEALTH:
                self._pipeline.authenticate(call, headers)
                require(call.principal, "admin" if kind is Kind.MANAGE else "infer")
            return await self._unary(method, request, context, self._upstreams.pick())
        except GatewayError as exc:
            return await refuse(context, exc)

    async def _infer(self, request: bytes, context: Any) -> bytes:
        headers = _headers(context)
        call = Call(_request_id(headers), "grpc", operation="infer")
        try:
            request = await self._begun(call, headers, request)
            return await self._ask(call, headers.get(SESSION_KEY), request, context)
        except GatewayError as exc:
            fail(call, exc)
            return await refuse(context, exc)
        except grpc.aio.AioRpcError as exc:
            code = code_of(exc)
            fail(call, from_triton(exc.details() or "", code), code)
            await context.abort(code, exc.details() or "", exc.trailing_metadata() or ())
            raise AssertionError("abort raises") from exc
        except asyncio.CancelledError:
            fail(call, ClientGone("the client left"), grpc.StatusCode.CANCELLED)
            raise
        except Exception as exc:
            return await refuse(context, _unforeseen(call, exc))
        finally:
            await asyncio.shield(self._pipeline.end(call))

    async def _begun(self, call: Call, headers: Mapping[str, str], request: bytes) -> bytes:
        """The request as it goes to Triton. Raises GatewayError."""
        self._pipeline.authenticate(call, headers)
        head = read_request(request)
        if head.request_id:
            call.request_id = head.request_id[:MAX_ID_CHARS]
        self._pipeline.enter(call, head.model_name)
        target = self._pipeline.route(call, sticky=headers.get(SESSION_KEY), num_prompt_tokens=0)
        if self._pipeline.must_wait(call):
            await self._pipeline.wait_turn(call)
        await self._pipeline.admit(call, 0, None)
        return request if target.model == head.model_name else with_model(request, target.model)

    async def _ask(self, call: Call, session: str | None, request: bytes, context: Any) -> bytes:
        """At another endpoint when one can't be reached. Raises AioRpcError."""
        tried: set[str] = set()
        while True:
            lease = self._upstreams.pick(session=session, avoid=tried)
            tried.add(lease.endpoint)
            attempt = call.begin_at(lease.endpoint)
            traced = traced_by(request, attempt.traceparent)
            try:
                reply = await self._unary("ModelInfer", traced, context, lease, attempt.traceparent)
                attempt.end()
                return reply
            except grpc.aio.AioRpcError as exc:
                error = from_triton(exc.details() or "", exc.code())
                attempt.end(error)
                if not self._upstreams.may_retry(error, tried):
                    raise
                call.try_again(error)

    async def _unary(
        self, method: str, request: bytes, context: Any, lease: Lease, traceparent: str = ""
    ) -> bytes:
        """Runs to its end at Triton whatever the client does. Raises AioRpcError."""
        channel = lease.triton.channel()
        call = channel.unary_unary(f"/{SERVICE}/{method}")(
            request, metadata=self._metadata(context, traceparent)
        )
        running = asyncio.ensure_future(_awaited(call))
        running.add_done_callback(lambda done: lease.done(_outcome(done)))
        self._keep(running)
        try:
            reply: bytes = await asyncio.shield(running)
        except grpc.aio.AioRpcError as exc:
            if method == "ModelInfer":
                raise
            await context.abort(code_of(exc), exc.details() or "", exc.trailing_metadata() or ())
            raise AssertionError("abort raises") from exc
        context.set_trailing_metadata(_plain(await call.trailing_metadata()))
        return reply

    async def _stream(self, requests: AsyncIterator[bytes], context: Any) -> None:
        """One stream to Triton for each of a client's."""
        headers = _headers(context)
        try:
            self._pipeline.authenticate(Call(_request_id(headers), "grpc"), headers)
        except GatewayError as exc:
            await refuse(context, exc)
        tried: set[str] = set()

        def connect(call: Call) -> Connection:
            lease = self._upstreams.pick(session=headers.get(SESSION_KEY), avoid=tried)
            attempt = call.begin_at(lease.endpoint)
            method = lease.triton.channel().stream_stream(f"/{SERVICE}/ModelStreamInfer")
            stream = method(metadata=self._metadata(context, attempt.traceparent))
            return Connection(stream, lease, attempt.traceparent)

        def may_retry(error: GatewayError, lost: Connection) -> bool:
            tried.add(lost.lease.endpoint)
            return self._upstreams.may_retry(error, tried)

        stream = ProxiedStream(self._pipeline.end, connect, may_retry, context)

        async def begun(request: bytes) -> tuple[Call, bytes]:
            call = Call(_request_id(headers), "grpc", operation="stream_infer", is_stream=True)
            try:
                return call, await self._begun(call, headers, request)
            except GatewayError as exc:
                fail(call, exc)
                await self._pipeline.end(call)
                raise
            except asyncio.CancelledError:
                fail(call, ClientGone("the client left before its request went to Triton"))
                await asyncio.shield(self._pipeline.end(call))
                raise
            except Exception as exc:
                error = _unforeseen(call, exc)
                await self._pipeline.end(call)
                raise error from exc

        try:
            await stream.run(requests, begun)
        finally:
            self._keep(asyncio.ensure_future(stream.close()))

    def _metadata(self, context: Any, traceparent: str = "") -> Metadata:
        """The client's, less what is ours or of this connection only, and what opens Triton to us."""
        given = [
            (key, value)
            for key, value in context.invocation_metadata() or ()
            if key not in _OURS and not key.startswith(_HOP_BY_HOP)
        ]
        traced = [(TRACEPARENT, traceparent)] if traceparent else []
        return (*given, *traced, *self._extra)

    def _keep(self, call: asyncio.Future[Any]) -> None:
        self._kept.add(call)
        call.add_done_callback(self._forget)

    def _forget(self, call: asyncio.Future[Any]) -> None:
        self._kept.discard(call)
        if not call.cancelled():
            call.exception()  # fetched, so that asyncio does not complain about calls nobody waits for


def _outcome(done: asyncio.Future[Any]) -> Outcome:
    if done.cancelled():
        return Outcome.UNKNOWN
    exc = done.exception()
    if isinstance(exc, grpc.aio.AioRpcError):
        is_lost = is_unreachable(from_triton(exc.details() or "", exc.code()))
        return Outcome.UNREACHABLE if is_lost else Outcome.ANSWERED
    return Outcome.ANSWERED


async def _awaited(call: Any) -> Any:
    return await call


def _unforeseen(call: Call, exc: Exception) -> GatewayError:
    """A defect of ours. Without a word the call would look like success, and a stream would wait for ever."""
    logger.error("request %s failed", call.request_id, exc_info=exc)
    error = InternalError("the gateway failed; its log says more")
    fail(call, error)
    return error


def _headers(context: Any) -> dict[str, str]:
    return {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}


def _request_id(headers: Mapping[str, str]) -> str:
    return headers.get(REQUEST_ID_KEY, "")[:MAX_ID_CHARS] or uuid.uuid4().hex


def _plain(metadata: Iterable[tuple[str, Any]] | None) -> Metadata:
    return tuple((key, value) for key, value in metadata or () if not key.startswith("grpc-"))
