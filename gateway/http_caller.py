"""Who calls over HTTP."""

from __future__ import annotations

from starlette.requests import Request

from gateway.access_log import call_of
from gateway.authentication import KEY_HEADER
from gateway.errors import KeyInvalid
from gateway.inner_calls import PRINCIPAL
from gateway.pipeline import Pipeline


def authenticate(request: Request, pipeline: Pipeline) -> None:
    """Raises KeyMissing and KeyInvalid.

    A header that stands twice is refused: a proxy before us may have looked at the other one.
    """
    if (inner := request.scope.get(PRINCIPAL)) is not None:
        pipeline.begin_inner(call_of(request), inner, request.headers)
        return
    if pipeline.authenticator.is_on:
        for name in ("authorization", KEY_HEADER):
            if len(request.headers.getlist(name)) > 1:
                raise KeyInvalid(f"the header {name} stands there twice; send one key")
    pipeline.authenticate(call_of(request), request.headers)
