"""One JSON line a request on stderr: who asked what of which model, and how it ended. Never the content."""

from __future__ import annotations

import logging
import re
import time
import uuid
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

logger = logging.getLogger("gateway.access")

REQUEST_ID_HEADER = b"x-request-id"
_GOOD_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
MAX_PATH_CHARS = 200


@dataclass
class RequestRecord:
    """What a request's line will say; the handlers fill it in as they learn it."""

    request_id: str
    started_s: float
    model: str = ""
    status: int = 0
    error_code: str | None = None
    num_prompt_tokens: int | None = None
    num_output_tokens: int | None = None
    first_byte_s: float | None = None


def record_of(request: Request) -> RequestRecord:
    record: RequestRecord = request.scope["tidegate.record"]
    return record


class AccessLog:
    """ASGI middleware: makes the request's id and record, answers with the id, writes the line."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = RequestRecord(request_id=_request_id(scope), started_s=time.monotonic())
        scope["tidegate.record"] = record

        async def send_noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = record.status or message["status"]
                record.first_byte_s = time.monotonic() - record.started_s
                headers = [*message.get("headers", ()), (REQUEST_ID_HEADER, record.request_id.encode())]
                message = {**message, "headers": headers}
            await send(message)

        try:
            await self._app(scope, receive, send_noted)
        finally:
            logger.info("%s", _line(scope, record))


def _request_id(scope: Scope) -> str:
    """The client's own id where it is a harmless one, else a new one."""
    for name, value in scope["headers"]:
        if name == REQUEST_ID_HEADER and _GOOD_ID.fullmatch(value):
            return str(value, "ascii")
    return uuid.uuid4().hex


def _line(scope: Scope, record: RequestRecord) -> str:
    values: dict[str, Any] = {
        "time_unix_s": round(time.time(), 3),
        "request_id": record.request_id,
        "method": scope["method"],
        "path": scope["path"][:MAX_PATH_CHARS],
        "model": record.model,
        "status": record.status,
        "error": record.error_code,
        "ms": round((time.monotonic() - record.started_s) * 1000, 1),
        "first_byte_ms": None if record.first_byte_s is None else round(record.first_byte_s * 1000, 1),
        "prompt_tokens": record.num_prompt_tokens,
        "output_tokens": record.num_output_tokens,
    }
    return msgspec.json.encode({key: value for key, value in values.items() if value is not None}).decode()
