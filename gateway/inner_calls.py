"""The gateway asking itself: a request through the whole HTTP door, without a connection.

Whose call it is comes from inside, in the scope: no client can put anything there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message

from gateway.principal import Principal

PRINCIPAL, PRIORITY = "tidegate.principal", "tidegate.priority"


@dataclass(frozen=True)
class InnerAnswer:
    status: int
    headers: Mapping[str, str]
    body: bytes


async def ask(
    app: ASGIApp, path: str, body: bytes, *, principal: Principal, request_id: str, priority: int = 0
) -> InnerAnswer:
    """POST. A cancel is to the call as if its client had left."""
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"x-request-id", request_id.encode()),
        ],
        "client": None,
        "server": None,
        PRINCIPAL: principal,
        PRIORITY: priority,
    }
    sent: list[Message] = []
    is_read = False

    async def receive() -> Message:
        nonlocal is_read
        if is_read:
            await asyncio.Event().wait()  # nobody leaves
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    start = next(message for message in sent if message["type"] == "http.response.start")
    headers = {key.decode().lower(): value.decode("latin-1") for key, value in start["headers"]}
    return InnerAnswer(start["status"], headers, b"".join(message.get("body", b"") for message in sent))
