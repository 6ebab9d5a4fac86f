"""OpenAI's batches: many requests in a file, answered in a file, some time within a day."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict

import msgspec
from fastapi import APIRouter
from openai.types import Batch, BatchError, BatchRequestCounts
from openai.types.batch import Errors
from starlette.requests import Request
from starlette.responses import Response

from gateway.access_log import call_of
from gateway.batch_input import ENDPOINTS, BatchInputInvalid, read_lines
from gateway.errors import BatchNotFound, BatchOver, InvalidRequest, NotServedHere, shown
from gateway.files_api import answered, known, listed, page_of
from gateway.http_caller import authenticate
from gateway.streaming import read_body
from ledger.batches import BatchRow

WINDOW = "24h"
WINDOW_S = 24 * 3600
MAX_BODY_BYTES = 64 * 1024
MAX_PAIRS, MAX_KEY_CHARS, MAX_VALUE_CHARS = 16, 64, 512

router = APIRouter()


class _Asked(msgspec.Struct):
    input_file_id: str
    endpoint: str
    completion_window: str = WINDOW
    metadata: dict[str, str] | None = None


@router.post("/v1/batches")
async def create(request: Request) -> Response:
    parts, tenant = known(request)
    asked = _read(await read_body(request, MAX_BODY_BYTES))
    content = await asyncio.to_thread(parts.files.content, tenant, asked.input_file_id)
    if content is None:
        raise InvalidRequest(f"no file {shown(asked.input_file_id)}", "input_file_id")
    num_lines, errors = 0, "[]"
    try:
        num_lines = len(await asyncio.to_thread(read_lines, content, asked.endpoint))
    except BatchInputInvalid as exc:
        errors = msgspec.json.encode([asdict(problem) for problem in exc.problems]).decode()
    row = await asyncio.to_thread(
        parts.batches.add,
        BatchRow(
            tenant=tenant,
            key_id=call_of(request).principal.key_id,
            endpoint=asked.endpoint,
            input_file_id=asked.input_file_id,
            num_lines=num_lines,
            expires_unix_s=time.time() + WINDOW_S,
            metadata=msgspec.json.encode(asked.metadata or {}).decode(),
            errors=errors,
            status="in_progress" if num_lines else "failed",
        ),
    )
    return answered(_batch(row))


@router.get("/v1/batches")
async def list_batches(request: Request) -> Response:
    parts, tenant = known(request)
    limit, after = page_of(request)
    rows = await asyncio.to_thread(parts.batches.page, tenant, after=after, limit=limit + 1)
    return listed([_batch(row) for row in rows], limit)


@router.get("/v1/batches/{batch_id}")
async def get_batch(request: Request, batch_id: str) -> Response:
    parts, tenant = known(request)
    row = await asyncio.to_thread(parts.batches.get, tenant, batch_id)
    if row is None:
        raise BatchNotFound(f"no batch {shown(batch_id)}")
    return answered(_batch(row))


@router.post("/v1/batches/{batch_id}/cancel")
async def cancel(request: Request, batch_id: str) -> Response:
    parts, tenant = known(request)
    is_cancelled = await asyncio.to_thread(parts.batches.cancel, tenant, batch_id)
    row = await asyncio.to_thread(parts.batches.get, tenant, batch_id)
    if row is None:
        raise BatchNotFound(f"no batch {shown(batch_id)}")
    if not is_cancelled and row.status != "cancelling":
        raise BatchOver(f"batch {shown(batch_id)} is {row.status} and can't be cancelled")
    return answered(_batch(row))


@router.api_route("/v1/uploads", methods=["POST"])
@router.api_route("/v1/uploads/{path:path}", methods=["POST"])
async def uploads(request: Request) -> Response:
    authenticate(request, request.app.state.gateway.pipeline)
    raise NotServedHere("uploads in parts are not served; POST the whole file to /v1/files")


def _read(body: bytes) -> _Asked:
    """Raises InvalidRequest."""
    try:
        asked = msgspec.json.decode(body, type=_Asked)
    except (msgspec.MsgspecError, RecursionError) as exc:
        raise InvalidRequest(f"the body is no batch: {exc}") from exc
    if asked.endpoint not in ENDPOINTS:
        raise InvalidRequest(
            f"endpoint = {shown(asked.endpoint)}, must be one of {', '.join(ENDPOINTS)}", "endpoint"
        )
    if asked.completion_window != WINDOW:
        raise InvalidRequest(
            f'completion_window = {shown(asked.completion_window)}, must be "{WINDOW}"', "completion_window"
        )
    pairs = asked.metadata or {}
    if len(pairs) > MAX_PAIRS or any(
        len(key) > MAX_KEY_CHARS or len(value) > MAX_VALUE_CHARS for key, value in pairs.items()
    ):
        raise InvalidRequest(
            f"metadata may have {MAX_PAIRS} pairs, keys of {MAX_KEY_CHARS} and values of {MAX_VALUE_CHARS} "
            "characters",
            "metadata",
        )
    return asked


def _batch(row: BatchRow) -> Batch:
    ended_at = int(row.ended_unix_s) if row.ended_unix_s is not None else None
    problems = [BatchError(**problem) for problem in msgspec.json.decode(row.errors)]
    status = row.status
    return Batch.model_validate(
        {
            "id": row.batch_id,
            "object": "batch",
            "endpoint": row.endpoint,
            "input_file_id": row.input_file_id,
            "completion_window": WINDOW,
            "status": status,
            "created_at": int(row.made_unix_s),
            "in_progress_at": None if problems else int(row.made_unix_s),
            "expires_at": int(row.expires_unix_s),
            "cancelling_at": int(row.cancelled_unix_s) if row.cancelled_unix_s is not None else None,
            "output_file_id": row.output_file_id,
            "error_file_id": row.error_file_id,
            "errors": Errors(data=problems, object="list") if problems else None,
            "metadata": msgspec.json.decode(row.metadata) or None,
            "request_counts": BatchRequestCounts(
                total=row.num_lines, completed=row.num_completed, failed=row.num_failed
            ),
            **{
                f"{name}_at": ended_at if status == name else None
                for name in ("completed", "failed", "expired", "cancelled")
            },
        }
    )
