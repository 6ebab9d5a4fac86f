"""`GET /metrics`, beside the API: whoever may read figures (the role "metrics"; everybody while keys are off)."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from gateway.authentication import require
from gateway.http_work import arrived
from gateway.metrics import CONTENT_TYPE

router = APIRouter()


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Raises KeyMissing, KeyInvalid, Forbidden."""
    gateway, call = arrived(request, None)
    require(call.principal, "metrics")
    return Response(gateway.metrics.render(), media_type=CONTENT_TYPE)
