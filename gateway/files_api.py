"""OpenAI's files: uploaded by tenants, written by batches, kept in the ledger."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Literal

from fastapi import APIRouter
from openai.types import FileDeleted, FileObject
from pydantic import BaseModel
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import Response

from gateway.authentication import require
from gateway.batch_parts import DEFAULT_PAGE, MAX_PAGE, BatchParts, batches_of
from gateway.errors import FileInUse, FileNotFound, InvalidRequest, StorageFull, shown
from gateway.http_work import arrived
from gateway.streaming import read_body
from ledger.errors import FilesFull
from ledger.files import FileRow

MAX_NAME_CHARS = 255
_FORM_BYTES = 64 * 1024
"""What a form has beside its file."""

router = APIRouter()


def known(request: Request) -> tuple[BatchParts, str]:
    """And the tenant that asks. Raises KeyMissing, KeyInvalid, Forbidden, NotServedHere."""
    gateway, call = arrived(request, None)
    require(call.principal)
    return batches_of(gateway.batches), call.principal.tenant


@router.post("/v1/files")
async def upload(request: Request) -> Response:
    parts, tenant = known(request)
    body = await read_body(request, parts.max_file_bytes + _FORM_BYTES)
    name, purpose, content = await _form(request, body)
    if purpose != "batch":
        raise InvalidRequest(f'purpose = {shown(purpose)}, must be "batch"', "purpose")
    if len(content) > parts.max_file_bytes:
        raise InvalidRequest(f"the file has {len(content):,} bytes, at most {parts.max_file_bytes:,}", "file")
    try:
        row = await asyncio.to_thread(parts.files.add, tenant, name, purpose, content)
    except FilesFull as exc:
        raise StorageFull(str(exc)) from exc
    return answered(_file(row))


@router.get("/v1/files")
async def list_files(request: Request) -> Response:
    parts, tenant = known(request)
    limit, after = page_of(request)
    purpose = request.query_params.get("purpose")
    rows = await asyncio.to_thread(parts.files.page, tenant, purpose=purpose, after=after, limit=limit + 1)
    return listed([_file(row) for row in rows], limit)


@router.get("/v1/files/{file_id}")
async def get_file(request: Request, file_id: str) -> Response:
    parts, tenant = known(request)
    row = await asyncio.to_thread(parts.files.get, tenant, file_id)
    if row is None:
        raise FileNotFound(f"no file {shown(file_id)}")
    return answered(_file(row))


@router.get("/v1/files/{file_id}/content")
async def get_content(request: Request, file_id: str) -> Response:
    parts, tenant = known(request)
    content = await asyncio.to_thread(parts.files.content, tenant, file_id)
    if content is None:
        raise FileNotFound(f"no file {shown(file_id)}")
    return Response(content, media_type="application/octet-stream")


@router.delete("/v1/files/{file_id}")
async def delete_file(request: Request, file_id: str) -> Response:
    parts, tenant = known(request)
    if await asyncio.to_thread(parts.batches.uses, tenant, file_id):
        raise FileInUse(
            f"a batch that runs reads file {shown(file_id)}; cancel it first, or wait for its end"
        )
    if not await asyncio.to_thread(parts.files.delete, tenant, file_id):
        raise FileNotFound(f"no file {shown(file_id)}")
    return answered(FileDeleted(id=file_id, deleted=True, object="file"))


def page_of(request: Request) -> tuple[int, str | None]:
    """How many, and after which. Raises InvalidRequest."""
    given = request.query_params.get("limit", str(DEFAULT_PAGE))
    if not given.isascii() or not given.isdecimal() or not 1 <= int(given[:9]) <= MAX_PAGE:
        raise InvalidRequest(f"limit = {shown(given)}, must be from 1 to {MAX_PAGE}", "limit")
    return int(given), request.query_params.get("after")


def answered(value: BaseModel) -> Response:
    return Response(value.model_dump_json(), media_type="application/json")


def listed(values: list[Any], limit: int) -> Response:
    """`values`: one more than the page has, where there is more."""
    shown_values = values[:limit]
    return answered(
        _Page(
            data=shown_values,
            has_more=len(values) > limit,
            first_id=shown_values[0].id if shown_values else None,
            last_id=shown_values[-1].id if shown_values else None,
        )
    )


class _Page(BaseModel):
    object: Literal["list"] = "list"
    data: list[Any]
    has_more: bool
    first_id: str | None
    last_id: str | None


def _file(row: FileRow) -> FileObject:
    return FileObject(
        id=row.file_id,
        bytes=row.num_bytes,
        created_at=int(row.made_unix_s),
        filename=row.name,
        object="file",
        purpose="batch_output" if row.purpose == "batch_output" else "batch",
        status="processed",
    )


async def _form(request: Request, body: bytes) -> tuple[str, str, bytes]:
    """Name, purpose, content. Raises InvalidRequest."""
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise InvalidRequest("send the file as multipart/form-data with `purpose` and `file`")

    async def pieces() -> AsyncIterator[bytes]:
        yield body

    try:
        form = await MultiPartParser(request.headers, pieces(), max_files=1, max_fields=8).parse()  # type: ignore[arg-type]
    except (MultiPartException, KeyError, UnicodeError) as exc:
        raise InvalidRequest(f"the form can't be read: {exc}") from exc
    try:
        file, purpose = form.get("file"), form.get("purpose")
        if not isinstance(file, UploadFile) or not isinstance(purpose, str):
            raise InvalidRequest("the form needs `purpose`, a text, and `file`, a file with a name")
        return (file.filename or "file")[:MAX_NAME_CHARS], purpose, await file.read()
    finally:
        await form.close()
