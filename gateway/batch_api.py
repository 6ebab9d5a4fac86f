"""OpenAI's files and batches: their places, so that a client learns what is missing instead of "unknown URL"."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from gateway.errors import NotServedHere
from gateway.http_caller import authenticate

router = APIRouter()


@router.api_route("/v1/files", methods=["GET", "POST"])
@router.api_route("/v1/files/{path:path}", methods=["GET", "POST", "DELETE"])
@router.api_route("/v1/uploads", methods=["POST"])
@router.api_route("/v1/batches", methods=["GET", "POST"])
@router.api_route("/v1/batches/{path:path}", methods=["GET", "POST"])
async def not_yet(request: Request) -> Response:
    authenticate(request, request.app.state.gateway.pipeline)
    raise NotServedHere(
        "files and batches are not served yet; send the requests one by one, many at a time if you like: they are "
        "batched on the server"
    )
