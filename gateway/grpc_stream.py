"""One ModelStreamInfer through the gateway: a stream to Triton for the client's, each request a call by itself.

A request that is refused gets an error message on the stream, as Triton itself would send it, and the stream goes
on; one whose key is not good ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc
from tritonclient.grpc import service_pb2

from contracts.tracing.context import TRACEPARENT
from contracts.triton_key import REFUSAL
from gateway.balancing import Outcome
from gateway.call import Call
from gateway.errors import (
    BROKEN_WRITE,
    ClientGone,
    Forbidden,
    GatewayError,
    KeyInvalid,
    KeyMissing,
    from_triton,
)
from gateway.grpc_wire import ReplyHead, read_reply, read_request, with_parameter
from gateway.upstreams import Lease

END_WAIT_S = 1.0
MAX_KEPT_BYTES = 1024 * 1024
"""A stream whose unanswered requests are longer stays where it is."""

Begun = Callable[[bytes], Awaitable[tuple[Call, bytes]]]
"""A client's request -> its call, and the request as it goes to Triton. Raises GatewayError with the call ended."""


@dataclass(frozen=True)
class Connection:
    """A stream to one of the Tritons."""

    stream: Any
    lease: Lease
    traceparent: str
    """Triton takes it for the parent of all requests on the stream. "": it traces none."""


class ProxiedStream:
    """`run` it, then `close` it, however it ended.

    The stream to Triton begins with the first request that is let in: clients that connect and ask nothing cost
    Triton nothing. Until the first answer the requests are kept, so that another Triton can be asked them. One that
    is traced gets a stream of its own to Triton, unless others are still open: their order may matter.
    """

    def __init__(
        self,
        end: Callable[[Call], Awaitable[None]],
        connect: Callable[[Call], Connection],
        may_retry: Callable[[GatewayError, Connection], bool],
        context: Any,
    ) -> None:
        """`connect` begins the call's attempt. Raises UpstreamUnavailable."""
        self._end = end
        self._connect = connect
        self._may_retry = may_retry
        self._context = context
        self._to: Connection | None = None
        self._is_begun = asyncio.Event()
        """There is a connection, or there will be none."""
        self._unanswered: list[tuple[Call, bytes]] | None = []
        """None: too late for another Triton."""
        self._has_sent_all = False
        self._sending = asyncio.Lock()
        self._open: dict[str, list[Call]] = {}
        """By the id on the wire, which may be empty, in the order of their coming."""
        self._writing = asyncio.Lock()
        self._ended_by: GatewayError | None = None
        self._owes_nothing = False

    async def run(self, requests: AsyncIterator[bytes], begun: Begun) -> None:
        sending = asyncio.ensure_future(self._send(requests, begun))
        error: GatewayError | None = ClientGone("the client left")
        try:
            await self._receive()
            error = None
        except grpc.aio.AioRpcError as exc:
            error = from_triton(exc.details() or "", exc.code())
            await self._context.abort(code_of(exc), exc.details() or "", exc.trailing_metadata() or ())
        except GatewayError as exc:
            error = exc
            await refuse(self._context, exc)
        finally:
            sending.cancel()
            await asyncio.shield(self._end_all(error))

    async def _receive(self) -> None:
        await self._is_begun.wait()
        while self._to is not None:
            connection = self._to
            try:
                await self._receive_from(connection.stream)
                if self._to is connection:
                    break
            except grpc.aio.AioRpcError as exc:
                error = from_triton(exc.details() or "", exc.code())
                if self._unanswered is None or not self._may_retry(error, connection):
                    raise
                await self._try_again(connection, error)
        if self._ended_by is not None:
            raise self._ended_by

    async def _receive_from(self, upstream: Any) -> None:
        while (reply := await upstream.read()) is not grpc.aio.EOF:
            self._unanswered = None
            head = read_reply(reply)
            if (wire_id := self._wire_id(head)) is None:
                await self._write(reply)
                continue
            call = self._open[wire_id][0]
            passed = call.token_counter.read(call, reply) if call.token_counter else reply
            # Before the client has it: its next request must not find this one's share taken.
            await self._note(wire_id, head)
            await self._write(passed)
        code = await upstream.code()
        if code is grpc.StatusCode.OK or self._ended_by is not None:
            return
        details = await upstream.details() or f"Triton ended the stream with {code.name}"
        raise grpc.aio.AioRpcError(
            code, await upstream.initial_metadata(), await upstream.trailing_metadata(), details=details
        )

    async def _try_again(self, lost: Connection, error: GatewayError) -> None:
        async with self._sending:
            lost.lease.failed(error)
            self._to = None
            for call, request in self._unanswered or ():
                call.trace.attempts[-1].end(error)
                call.try_again(error)
                await self._write_request(call, request)
            if self._has_sent_all and self._to is not None:
                await self._to.stream.done_writing()

    async def _send(self, requests: AsyncIterator[bytes], begun: Begun) -> None:
        try:
            async for request in requests:
                try:
                    call, changed = await begun(request)
                except (KeyMissing, KeyInvalid, Forbidden) as exc:
                    self._ended_by = exc
                    break
                except GatewayError as exc:
                    message = service_pb2.ModelStreamInferResponse(error_message=exc.message)
                    await self._write(message.SerializeToString())
                    continue
                self._open.setdefault(read_request(request).request_id, []).append(call)
                async with self._sending:
                    await self._pass_on(call, changed)
            async with self._sending:
                self._has_sent_all = True
                if self._to is not None:
                    await self._to.stream.done_writing()
        except GatewayError as exc:
            self._ended_by = exc
        finally:
            self._is_begun.set()

    async def _pass_on(self, call: Call, request: bytes) -> None:
        if self._unanswered is not None:
            self._unanswered.append((call, request))
            if sum(len(kept) for _, kept in self._unanswered) > MAX_KEPT_BYTES:
                self._unanswered = None
        await self._write_request(call, request)

    async def _write_request(self, call: Call, request: bytes) -> None:
        to = self._to
        if to is None or (self._is_alone(call) and (to.traceparent or call.trace.context.is_sampled)):
            self._to = self._connect(call)
            self._is_begun.set()
            if to is not None:
                to.lease.done()
                await _finish(to.stream)
            to = self._to
        else:
            call.begin_at(to.lease.endpoint)
        await _write_to(to.stream, traced_by(request, call.trace.attempts[-1].traceparent))

    def _is_alone(self, call: Call) -> bool:
        return all(calls == [call] for calls in self._open.values())

    async def _write(self, message: bytes) -> None:
        async with self._writing:
            await self._context.write(message)

    def _wire_id(self, head: ReplyHead) -> str | None:
        """Of the call that it answers. Errors of Triton's own may come without one."""
        return head.request_id if head.request_id in self._open else next(iter(self._open), None)

    async def _note(self, wire_id: str, head: ReplyHead) -> None:
        waiting = self._open[wire_id]
        call = waiting[0]
        call.note_text()
        if head.error:
            fail(call, from_triton(head.error))
        if head.error or head.is_final:
            waiting.pop(0)
            if not waiting:
                del self._open[wire_id]
            await self._end(call)

    async def _end_all(self, error: GatewayError | None) -> None:
        """Without empty final responses nothing but the stream's end tells that a call is over."""
        self._owes_nothing = error is None or not self._open
        if self._to is not None and error is None:
            self._to.lease.done()
        elif self._to is not None and isinstance(error, ClientGone):
            self._to.lease.done(Outcome.UNKNOWN)
        elif self._to is not None and error is not None:
            self._to.lease.failed(error)
        while self._open:
            _, calls = self._open.popitem()
            for call in calls:
                if error is not None:
                    fail(call, error)
                await self._end(call)

    async def close(self) -> None:
        """Lets Triton close a stream that owes nothing in its own order, and cancels one that does."""
        if self._to is None:
            return
        upstream = self._to.stream
        if not self._owes_nothing:
            upstream.cancel()
            return
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError, TimeoutError):
            async with asyncio.timeout(END_WAIT_S):
                await upstream.done_writing()
                while await upstream.read() is not grpc.aio.EOF:
                    pass


def traced_by(request: bytes, traceparent: str) -> bytes:
    """For the engine, should Triton not trace, or take another for the parent."""
    return with_parameter(request, TRACEPARENT, traceparent) if traceparent else request


async def _finish(upstream: Any) -> None:
    """Whoever reads the stream reads it to its end."""
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        await upstream.done_writing()


async def _write_to(upstream: Any, request: bytes) -> None:
    """Whoever reads the stream learns why it broke."""
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        await upstream.write(request)


async def refuse(context: Any, error: GatewayError) -> NoReturn:
    """Ends the RPC with the error's status, and when to try again."""
    metadata = [(key.lower(), value) for key, value in error.headers.items()]
    if error.retry_after_s is not None:
        metadata.append(("retry-after", str(error.retry_after_s)))
    await context.abort(error.grpc_code, error.message, tuple(metadata))
    raise AssertionError("abort raises")


def code_of(exc: grpc.aio.AioRpcError) -> grpc.StatusCode:
    """What the client is told. Triton's refusal of our key is UNAVAILABLE there, which clients try again, and a
    connection that broke is INTERNAL where it broke under a write."""
    details = exc.details() or ""
    if details.startswith(REFUSAL):
        return grpc.StatusCode.INTERNAL
    return grpc.StatusCode.UNAVAILABLE if details.startswith(BROKEN_WRITE) else exc.code()


def fail(call: Call, error: GatewayError, code: grpc.StatusCode | None = None) -> None:
    call.fail(error)
    number: int = (code or error.grpc_code).value[0]
    call.status = number
