"""KServe v2 over gRPC: Triton's own service, unchanged, behind keys, limits, routes and the call log.

Messages pass as bytes. Deadlines and cancels of unary calls end here and are not passed on, for they can crash this
Triton; a stream is cancelled only while it owes an answer (ARCHITECTURE.md, facts 11 and 12).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import grpc

from contracts.tracing.context import TRACEPARENT, TRACESTATE
from gateway.authentication import KEY_HEADER, require
from gateway.call import Call, ids_of, new_request_id
from gateway.catalog import NO_MODELS, Catalog, GatewayModel
from gateway.errors import ClientGone, GatewayError, InternalError, from_triton
from gateway.grpc_rpcs import METHODS, NAMES_A_MODEL, SERVICE, Kind, kind_of
from gateway.grpc_stream import Connection, ProxiedStream, code_of, fail, refuse, traced_by
from gateway.grpc_tokens import TokenRequest
from gateway.grpc_wire import read_model, read_request, with_model
from gateway.pipeline import Pipeline
from gateway.upstreams import Lease, Upstreams

logger = logging.getLogger("gateway")

SESSION_KEY = "x-tidegate-session"
REQUEST_ID_KEY = "x-request-id"
MAX_ID_CHARS = 128
"""In our logs; the wire keeps the whole."""
CLOSE_WAIT_S = 5.0
_KEYS = frozenset({"authorization", KEY_HEADER})
_OURS = frozenset({"authorization", KEY_HEADER, SESSION_KEY, TRACEPARENT, TRACESTATE})
_HOP_BY_HOP = ("grpc-", ":", "te", "user-agent", "content-type", "triton-grpc-protocol-")
"""Also the header that opens Triton's restricted calls: only the gateway may send it."""

Metadata = Sequence[tuple[str, str | bytes]]


class Answer(NamedTuple):
    """Of a unary RPC."""

    message: bytes
    trailer: Metadata


class GrpcDoor(grpc.GenericRpcHandler):
    """Give it to `server.add_generic_rpc_handlers`."""

    def __init__(
        self,
        pipeline: Pipeline,
        upstreams: Upstreams,
        extra: Metadata = (),
        catalog: Catalog = NO_MODELS,
    ) -> None:
        """`extra`: metadata for Triton alone. `catalog`: the models whose tokens are counted."""
        self._catalog = catalog
        self._pipeline = pipeline
        self._upstreams = upstreams
        self._extra = tuple(extra)
        self._kept: set[asyncio.Future[Any]] = set()
        self._handlers = {f"/{SERVICE}/{method}": self._handler(method) for method in METHODS}

    def service(self, handler_call_details: Any) -> Any:
        return self._handlers.get(handler_call_details.method)

    def _handler(self, method: str) -> Any:
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
        given = context.invocation_metadata() or ()
        headers = _headers(given)
        call = Call(_request_id(headers), "grpc")
        try:
            if kind is not Kind.HEALTH:
                self._pipeline.authenticate(call, headers)
                require(call.principal, "admin" if kind is Kind.MANAGE else "infer")
                if method in NAMES_A_MODEL and call.principal.services is not None:
                    require(call.principal, "infer", read_model(request))
            answer = await self._unary(method, request, self._metadata(given), self._upstreams.pick(), call)
        except GatewayError as exc:
            return await refuse(context, exc)
        except grpc.aio.AioRpcError as exc:
            return await _abort(context, exc)
        return _with_trailer(answer, context)

    async def _infer(self, request: bytes, context: Any) -> bytes:
        given = context.invocation_metadata() or ()
        headers = _headers(given)
        call = Call(_request_id(headers), "grpc", operation="infer")
        try:
            request = await self._begun(call, headers, request)
            return _with_trailer(
                await self._ask(call, headers.get(SESSION_KEY), request, self._metadata(given)), context
            )
        except GatewayError as exc:
            fail(call, exc)
            return await refuse(context, exc)
        except grpc.aio.AioRpcError as exc:
            code = code_of(exc)
            fail(call, from_triton(exc.details() or "", code), code)
            return await _abort(context, exc)
        except asyncio.CancelledError:
            fail(call, ClientGone("the client left"), grpc.StatusCode.CANCELLED)
            raise
        except Exception as exc:
            return await refuse(context, _unforeseen(call, exc))
        finally:
            # The row is written when the answer is on its way: nobody waits for it.
            asyncio.get_running_loop().call_soon(self._pipeline.log, call)
            if not call.runs_on:
                await self._pipeline.settle(call)

    async def _begun(self, call: Call, headers: Mapping[str, str], request: bytes) -> bytes:
        """The request as it goes to Triton. Raises GatewayError."""
        self._pipeline.authenticate(call, headers)
        head = read_request(request)
        if head.request_id:
            call.request_id = head.request_id[:MAX_ID_CHARS]
        self._pipeline.enter(call, head.model_name)
        sticky = headers.get(SESSION_KEY)
        target = self._pipeline.route(call, sticky=sticky, num_prompt_tokens=0)
        if (model := self._catalog.get(target.model)) is None or (
            asked := TokenRequest.read(request)
        ) is None:
            await self._turn(call)
            await self._pipeline.admit(call, 0, None)
        else:
            count = sum(await model.count_tokens(asked.texts))
            # Which model it is may depend on how long the prompt is.
            target = self._pipeline.route(call, sticky=sticky, num_prompt_tokens=count)
            await self._turn(call)
            request = await self._admitted(call, model, asked, count) or request
        return request if target.model == head.model_name else with_model(request, target.model)

    async def _turn(self, call: Call) -> None:
        if self._pipeline.must_wait(call):
            await self._pipeline.wait_turn(call)

    async def _admitted(
        self, call: Call, model: GatewayModel, asked: TokenRequest, num_prompt_tokens: int
    ) -> bytes | None:
        """The request, held to what its limits leave and asking for its tokens; None: as it is."""
        if model.kind != "generate":
            await self._pipeline.admit(call, num_prompt_tokens, None)
            return None
        most = min(asked.max_tokens, max(1, model.max_context_tokens - num_prompt_tokens))
        allowed = await self._pipeline.admit(call, num_prompt_tokens, most)
        request, call.token_counter = asked.counted(max(1, allowed) if allowed < most else asked.max_tokens)
        return request

    async def _ask(self, call: Call, session: str | None, request: bytes, metadata: Metadata) -> Answer:
        """At another endpoint when one can't be reached. Raises AioRpcError."""
        tried: set[str] = set()
        while True:
            lease = self._upstreams.pick(session=session, avoid=tried)
            tried.add(lease.endpoint)
            attempt = call.begin_at(lease.endpoint)
            traced = traced_by(request, attempt.traceparent)
            try:
                answer = await self._unary(
                    "ModelInfer", traced, _traced(metadata, attempt.traceparent), lease, call
                )
                attempt.end()
                return answer
            except grpc.aio.AioRpcError as exc:
                error = from_triton(exc.details() or "", exc.code())
                attempt.end(error)
                if not self._upstreams.may_retry(error, tried):
                    raise
                call.try_again(error)

    async def _unary(
        self, method: str, request: bytes, metadata: Metadata, lease: Lease, call: Call
    ) -> Answer:
        """Runs to its end at Triton whatever the client does, and keeps its places so long. Raises AioRpcError."""
        rpc = lease.triton.unary(f"/{SERVICE}/{method}")(request, metadata=metadata)
        ended = asyncio.get_running_loop().create_future()
        # Who awaits the RPC itself hands a cancel on to it, and a task with a shield takes four turns of the loop.
        rpc.add_done_callback(lambda _: _wake(ended))
        try:
            await ended
        except asyncio.CancelledError:
            call.runs_on = True
            self._keep(asyncio.ensure_future(self._run_on(rpc, lease, call)))
            raise
        try:
            answer = Answer(await rpc, _plain(await rpc.trailing_metadata()))
        except grpc.aio.AioRpcError as exc:
            lease.failed(from_triton(exc.details() or "", exc.code()))
            raise
        lease.done()
        return answer

    async def _run_on(self, rpc: Any, lease: Lease, call: Call) -> None:
        """Nobody waits for it any more."""
        try:
            await rpc
        except grpc.aio.AioRpcError as exc:
            lease.failed(from_triton(exc.details() or "", exc.code()))
        finally:
            lease.done()
            await self._pipeline.settle(call)

    async def _stream(self, requests: AsyncIterator[bytes], context: Any) -> None:
        """One stream to Triton for each of a client's."""
        given = context.invocation_metadata() or ()
        headers = _headers(given)
        try:
            self._pipeline.authenticate(Call(_request_id(headers), "grpc"), headers)
        except GatewayError as exc:
            await refuse(context, exc)
        metadata = self._metadata(given)
        tried: set[str] = set()

        def connect(call: Call) -> Connection:
            lease = self._upstreams.pick(session=headers.get(SESSION_KEY), avoid=tried)
            attempt = call.begin_at(lease.endpoint)
            method = lease.triton.channel().stream_stream(f"/{SERVICE}/ModelStreamInfer")
            return Connection(
                method(metadata=_traced(metadata, attempt.traceparent)), lease, attempt.traceparent
            )

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
                await self._pipeline.end(call)
                raise
            except Exception as exc:
                error = _unforeseen(call, exc)
                await self._pipeline.end(call)
                raise error from exc

        try:
            await stream.run(requests, begun)
        finally:
            self._keep(asyncio.ensure_future(stream.close()))

    def _metadata(self, given: Metadata) -> Metadata:
        """The client's, less what is ours or of this connection only, and what opens Triton to us."""
        passed = [each for each in given if each[0] not in _OURS and not each[0].startswith(_HOP_BY_HOP)]
        return (*passed, *self._extra)

    def _keep(self, call: asyncio.Future[Any]) -> None:
        self._kept.add(call)
        call.add_done_callback(self._forget)

    def _forget(self, call: asyncio.Future[Any]) -> None:
        self._kept.discard(call)
        if not call.cancelled():
            call.exception()  # fetched, so that asyncio does not complain about calls nobody waits for


def _traced(metadata: Metadata, traceparent: str) -> Metadata:
    return (*metadata, (TRACEPARENT, traceparent)) if traceparent else metadata


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


def _with_trailer(answer: Answer, context: Any) -> bytes:
    if answer.trailer:
        context.set_trailing_metadata(answer.trailer)
    return answer.message


async def _abort(context: Any, exc: grpc.aio.AioRpcError) -> NoReturn:
    """As Triton said it."""
    await context.abort(code_of(exc), exc.details() or "", exc.trailing_metadata() or ())
    raise AssertionError("abort raises") from exc


def _unforeseen(call: Call, exc: Exception) -> GatewayError:
    """A defect of ours. Without a word the call would look like success, and a stream would wait for ever."""
    logger.error("request %s failed", call.request_id, exc_info=exc, extra=ids_of(call))
    error = InternalError("the gateway failed; its log says more")
    fail(call, error)
    return error


def _headers(given: Metadata) -> dict[str, str]:
    """A key's header that stands there twice holds both, which is no key: a proxy before us may have looked at the
    other one."""
    headers = {key: value for key, value in given if isinstance(value, str)}
    if len(headers) < len(given):
        for name in _KEYS & headers.keys():
            headers[name] = ", ".join(str(value) for key, value in given if key == name)
    return headers


def _request_id(headers: Mapping[str, str]) -> str:
    return headers.get(REQUEST_ID_KEY, "")[:MAX_ID_CHARS] or new_request_id()


def _plain(metadata: Iterable[tuple[str, Any]] | None) -> Metadata:
    return tuple((key, value) for key, value in metadata or () if not key.startswith("grpc-"))
