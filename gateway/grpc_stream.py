"""One ModelStreamInfer through the gateway: a stream to Triton for the client's, each request a call by itself.

A request that is refused gets an error message on the stream, as Triton itself would send it, and the stream goes
on; one whose key is not good ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn

import grpc
from tritonclient.grpc import service_pb2

from contracts.triton_key import REFUSAL
from gateway.call import Call
from gateway.errors import (
    ClientGone,
    Forbidden,
    GatewayError,
    KeyInvalid,
    KeyMissing,
    UpstreamFailed,
    from_triton,
)
from gateway.grpc_wire import read_reply

END_WAIT_S = 1.0

Begun = Callable[[bytes], Awaitable[tuple[Call, bytes]]]
"""A client's request -> its call, and the request as it goes to Triton. Raises GatewayError with the call ended."""


class ProxiedStream:
    """`run` it, then `close` it, however it ended."""

    def __init__(self, end: Callable[[Call], Awaitable[None]], upstream: Any, context: Any) -> None:
        self._end = end
        self._upstream = upstream
        self._context = context
        self._open: dict[str, list[Call]] = {}
        """By request id, in the order of their coming."""
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
        upstream = self._upstream
        while (reply := await upstream.read()) is not grpc.aio.EOF:
            await self._write(reply)
            await self._note(reply)
        if self._ended_by is not None:
            raise self._ended_by
        code = await upstream.code()
        if code is not grpc.StatusCode.OK:
            raise UpstreamFailed(await upstream.details() or f"Triton ended the stream with {code.name}")

    async def _send(self, requests: AsyncIterator[bytes], begun: Begun) -> None:
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
            self._open.setdefault(call.request_id, []).append(call)
            await self._upstream.write(changed)
        await self._upstream.done_writing()

    async def _write(self, message: bytes) -> None:
        async with self._writing:
            await self._context.write(message)

    async def _note(self, reply: bytes) -> None:
        if not self._open:
            return
        head = read_reply(reply)
        waiting = self._open.get(head.request_id) or next(iter(self._open.values()))
        call = waiting[0]
        call.note_text()
        if head.error:
            fail(call, from_triton(head.error))
        if head.error or head.is_final:
            waiting.pop(0)
            if not waiting:
                del self._open[call.request_id]
            await self._end(call)

    async def _end_all(self, error: GatewayError | None) -> None:
        """Without empty final responses nothing but the stream's end tells that a call is over."""
        self._owes_nothing = error is None or not self._open
        while self._open:
            _, calls = self._open.popitem()
            for call in calls:
                if error is not None:
                    fail(call, error)
                await self._end(call)

    async def close(self) -> None:
        """Lets Triton close a stream that owes nothing in its own order, and cancels one that does."""
        if not self._owes_nothing:
            self._upstream.cancel()
            return
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError, TimeoutError):
            async with asyncio.timeout(END_WAIT_S):
                await self._upstream.done_writing()
                while await self._upstream.read() is not grpc.aio.EOF:
                    pass


async def refuse(context: Any, error: GatewayError) -> NoReturn:
    """Ends the RPC with the error's status, and when to try again."""
    metadata = [(key.lower(), value) for key, value in error.headers.items()]
    if error.retry_after_s is not None:
        metadata.append(("retry-after", str(error.retry_after_s)))
    await context.abort(error.grpc_code, error.message, tuple(metadata))
    raise AssertionError("abort raises")


def code_of(exc: grpc.aio.AioRpcError) -> grpc.StatusCode:
    """What the client is told. Triton's refusal of our key is UNAVAILABLE there, which clients try again."""
    is_refusal = (exc.details() or "").startswith(REFUSAL)
    return grpc.StatusCode.INTERNAL if is_refusal else exc.code()


def fail(call: Call, error: GatewayError, code: grpc.StatusCode | None = None) -> None:
    call.fail(error)
    number: int = (code or error.grpc_code).value[0]
    call.status = number
