"""One JSON line a request on stderr: who asked what of which model, and how it ended. Never the content."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from contracts.logs import fields
from contracts.tracing.context import TRACEPARENT
from gateway.call import Call, new_request_id
from gateway.pipeline import Pipeline
from ledger.keys import without_secrets

logger = logging.getLogger("gateway.access")

REQUEST_ID_HEADER = b"x-request-id"
VERSION_HEADER = b"x-tidegate-version"
_GOOD_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
MAX_PATH_CHARS = 200


def call_of(request: Request) -> Call:
    call: Call = request.scope["tidegate.call"]
    return call


class AccessLog:
    """ASGI middleware: makes the request's id and call, answers with the id, ends the call, writes the line."""

    def __init__(self, app: ASGIApp, pipeline: Pipeline) -> None:
        self._app = app
        self._pipeline = pipeline

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        call = Call(_request_id(scope), "http")
        scope["tidegate.call"] = call
        first_byte_s: float | None = None

        async def send_noted(message: Message) -> None:
            nonlocal first_byte_s
            if message["type"] == "http.response.start":
                call.status = call.status or message["status"]
                first_byte_s = time.monotonic() - call.started_s
                message = {**message, "headers": [*message.get("headers", ()), *_headers(call)]}
            await send(message)

        try:
            await self._app(scope, receive, send_noted)
        finally:
            try:
                await self._pipeline.end(call)
            finally:
                if not _is_poll(scope, call):
                    values = _values(scope, call, first_byte_s)
                    logger.info(
                        "%s", msgspec.json.encode(values).decode(), extra=fields(event="call", **values)
                    )


def _is_poll(scope: Scope, call: Call) -> bool:
    """An open console asks once a second; a line each would bury the calls."""
    return scope["path"] == "/console/data" and call.status == 200


def _headers(call: Call) -> Iterator[tuple[bytes, bytes]]:
    yield REQUEST_ID_HEADER, call.request_id.encode()
    if call.operation is not None:
        yield TRACEPARENT.encode(), call.trace.context.header.encode()
    if call.target is not None:
        yield VERSION_HEADER, call.target.version_name.encode()
    if call.admission is not None:
        yield from ((name.encode(), value.encode()) for name, value in call.admission.headers.items())


def _request_id(scope: Scope) -> str:
    """The client's own id where it is a harmless one, else a new one."""
    for name, value in scope["headers"]:
        if name == REQUEST_ID_HEADER and _GOOD_ID.fullmatch(value):
            return without_secrets(str(value, "ascii"))
    return new_request_id()


def _values(scope: Scope, call: Call, first_byte_s: float | None) -> dict[str, Any]:
    values: dict[str, Any] = {
        "time_unix_s": round(time.time(), 3),
        "request_id": call.request_id,
        "trace_id": call.trace_id or None,
        "method": scope["method"],
        "path": without_secrets(scope["path"])[:MAX_PATH_CHARS],
        "key": call.principal.key_id or None,
        "tenant": call.principal.tenant or None,
        "model": without_secrets(call.service),
        "version": call.target.version_name if call.target else None,
        "status": call.status,
        "error": call.error.code if call.error else None,
        "ms": round((time.monotonic() - call.started_s) * 1000, 1),
        "first_byte_ms": None if first_byte_s is None else round(first_byte_s * 1000, 1),
        "prompt_tokens": call.num_prompt_tokens,
        "output_tokens": call.num_output_tokens,
    }
    return {key: value for key, value in values.items() if value is not None}
