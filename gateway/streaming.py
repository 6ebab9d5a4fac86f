"""Between the client's connection and the work done for it: reading bodies with a limit, noticing that the
client has left, and sending server-sent events.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.access_log import call_of
from gateway.call import Call, ids_of
from gateway.errors import (
    BodyTimeout,
    BodyTooLarge,
    ClientGone,
    GatewayError,
    InternalError,
    InvalidRequest,
    UpstreamUnavailable,
    shown,
)
from gateway.translate import error_event

logger = logging.getLogger("gateway")

LINGER_S = 5.0
"""A client that is told 413 or 408 may go on sending for so long: a close at once would tear off the answer."""

_T = TypeVar("_T")


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Raises BodyTooLarge as soon as it is known, ClientGone, and InvalidRequest for a compressed body."""
    encoding = request.headers.get("content-encoding", "identity")
    if encoding != "identity":
        raise InvalidRequest(f"content-encoding {shown(encoding)} is not supported; send the body as it is")
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise BodyTooLarge(f"the body has {declared} bytes, at most {max_bytes} are taken")
    body = bytearray()
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientGone("the client left while it sent the body")
        body += message.get("body", b"")
        if len(body) > max_bytes:
            raise BodyTooLarge(f"the body has more than {max_bytes} bytes, which is the most that is taken")
        if not message.get("more_body", False):
            return bytes(body)


class ErrorAnswer(Response):
    """An error in OpenAI's shape."""

    def __init__(self, error: GatewayError) -> None:
        headers = dict(error.headers)
        if error.retry_after_s is not None:
            headers["retry-after"] = str(error.retry_after_s)
        super().__init__(error.body(), error.status, headers, media_type="application/json")
        self._lingers = isinstance(error, BodyTooLarge | BodyTimeout)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._lingers:
            await super().__call__(scope, receive, send)
            return
        headers = [*self.raw_headers, (b"connection", b"close")]
        await send({"type": "http.response.start", "status": self.status_code, "headers": headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                while (await receive()).get("more_body", False):
                    pass
        await send({"type": "http.response.body", "body": b""})


async def while_connected(request: Request, work: Coroutine[Any, Any, _T]) -> _T:
    """The work's result. When the client leaves first, the work is cancelled and ClientGone raised."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(request.receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone("the client left before the answer was ready")
        return task.result()
    finally:
        await _stop(task, gone)


async def _gone(receive: Receive) -> None:
    """Returns when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _stop(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


class EventStream(Response):
    """Sends events as they come. When the client leaves, the iterator is cancelled.

    An iterator that raises ends the stream with an error event: a cut answer never looks complete.
    """

    media_type = "text/event-stream"

    def __init__(self, request: Request, events: AsyncGenerator[bytes], send_timeout_s: float) -> None:
        """A client that takes nothing for `send_timeout_s` is given up: its generation holds a place meanwhile."""
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._call = call_of(request)
        self._events = events
        self._send_timeout_s = send_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        sender = asyncio.ensure_future(self._send_events(send))
        gone = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait((sender, gone), return_when=asyncio.FIRST_COMPLETED)
            if sender.done():
                sender.result()
            else:
                note_error(self._call, ClientGone("the client left during the answer"))
        except asyncio.CancelledError:
            # The server's grace is over. Say so, where the connection still takes it.
            await _stop(sender)
            await self._send_error(send, UpstreamUnavailable("the gateway is shutting down"))
            raise
        finally:
            await _stop(sender, gone)

    async def _send_events(self, send: Send) -> None:
        waiting: asyncio.Timeout | None = None
        try:
            # Closed at once, not when the garbage collector comes: it holds the stream to Triton.
            async with contextlib.aclosing(self._events) as events:
                async for data in events:
                    if data:
                        async with asyncio.timeout(self._send_timeout_s) as waiting:
                            await send({"type": "http.response.body", "body": data, "more_body": True})
        except GatewayError as exc:
            await self._send_error(send, exc)
        except TimeoutError:
            if waiting is None or not waiting.expired():
                raise  # not ours
            note_error(self._call, ClientGone(f"the client took nothing for {self._send_timeout_s:g} s"))
        except Exception:
            logger.exception("request %s failed", self._call.request_id, extra=ids_of(self._call))
            await self._send_error(send, InternalError("the gateway failed; its log says more"))
        else:
            await send({"type": "http.response.body", "body": b""})

    async def _send_error(self, send: Send, error: GatewayError) -> None:
        note_error(self._call, error)
        await send({"type": "http.response.body", "body": error_event(error)})


def note_error(call: Call, error: GatewayError) -> None:
    """In the log a stream that failed has the error's status, though the client saw 200 first."""
    call.fail(error)
    call.status = error.status
