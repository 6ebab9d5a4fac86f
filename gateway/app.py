"""Puts the parts together: routes, error answers, access log. No logic of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from gateway.access_log import AccessLog, record_of
from gateway.body_timeout import BodyDeadline
from gateway.catalog import Catalog
from gateway.config import GatewayConfig
from gateway.errors import GatewayError, InternalError, from_http_status
from gateway.http_api import Gateway, router
from gateway.scaler_client import ScalerClient
from gateway.streaming import ErrorAnswer, note_error
from gateway.triton_client import TritonClient
from gateway.waking import WakingTriton


def build_app(config: GatewayConfig, catalog: Catalog, triton: TritonClient | None = None) -> ASGIApp:
    """Without `triton` the app makes its own client when it starts, in the loop that runs it."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        client = triton or _client(config)
        app.state.gateway = Gateway(config, catalog, client)
        yield
        await client.close()

    app = FastAPI(title="tidegate", lifespan=lifespan, openapi_url=None)
    app.include_router(router)
    app.add_exception_handler(Exception, _answer_error)
    app.add_exception_handler(GatewayError, _answer_error)
    app.add_exception_handler(HTTPException, _answer_error)
    # Outermost, so that the answer to an unforeseen exception is logged and carries the request's id too.
    return AccessLog(BodyDeadline(app, config.body_timeout_s))


def _client(config: GatewayConfig) -> TritonClient | WakingTriton:
    triton = TritonClient(config.triton_grpc, config.num_channels)
    if not config.scaler_grpc:
        return triton
    return WakingTriton(triton, ScalerClient(config.scaler_grpc), config.wake_timeout_s)


async def _answer_error(request: Request, exc: Exception) -> Response:
    error = _as_gateway_error(exc)
    note_error(record_of(request), error)
    return ErrorAnswer(error)


def _as_gateway_error(exc: Exception) -> GatewayError:
    if isinstance(exc, GatewayError):
        return exc
    if isinstance(exc, HTTPException):
        return from_http_status(exc.status_code)
    return InternalError("the gateway failed; its log says more")
