"""A body must be whole in time: uvicorn waits for ever for a client that has sent half of one."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import BodyTimeout


class BodyDeadline:
    """ASGI middleware: reading a body raises BodyTimeout once `timeout_s` have passed since the request began.

    Over all its pieces, so that a byte now and then does not hold the connection either.
    """

    def __init__(self, app: ASGIApp, timeout_s: float) -> None:
        self._app = app
        self._timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        deadline_s = asyncio.get_running_loop().time() + self._timeout_s
        is_over = False

        async def receive_in_time() -> Message:
            nonlocal is_over
            if is_over:
                return await receive()
            try:
                async with asyncio.timeout_at(deadline_s):
                    message = await receive()
            except TimeoutError:
                is_over = True
                raise BodyTimeout(f"the body was not whole within {self._timeout_s:g} s") from None
            is_over = not message.get("more_body", False)
            return message

        await self._app(scope, receive_in_time, send)
