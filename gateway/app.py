"""Puts the parts together: routes, error answers, access log. No logic of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from gateway import batch_api, batch_runner, files_api, inner_calls, metrics_api
from gateway.access_log import AccessLog, call_of
from gateway.balanced_triton import BalancedTriton
from gateway.batch_runner import BatchRunner
from gateway.body_timeout import BodyDeadline
from gateway.catalog import Catalog
from gateway.config import GatewayConfig
from gateway.console import pages as console_pages
from gateway.errors import GatewayError, InternalError, from_http_status
from gateway.grpc_server import GrpcServer
from gateway.http_api import router
from gateway.http_work import Gateway
from gateway.inner_calls import InnerAnswer
from gateway.parts import Parts
from gateway.principal import Principal
from gateway.scaler_client import ScalerClient
from gateway.streaming import ErrorAnswer, note_error
from gateway.triton_client import TritonClient
from gateway.upstreams import Upstreams
from gateway.waking import WakingTriton
from ledger.batches import BatchRow


def build_app(
    config: GatewayConfig,
    catalog: Catalog,
    parts: Parts | None = None,
) -> ASGIApp:
    """Without `parts` the app makes its own, as the configuration says. Raises ConfigError."""
    key = config.triton_key()
    through = parts or Parts(config, [*catalog.names, *config.batch_models])

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        upstreams = Upstreams(
            [config.triton_grpc, *config.more_tritons],
            lambda address: TritonClient(address, config.num_channels, key),
        )
        await upstreams.resolve()
        through.state.upstreams = upstreams
        following = asyncio.create_task(upstreams.follow())
        client = _client(config, upstreams)
        app.state.console = through.console
        gateway = app.state.gateway = Gateway(
            config, catalog, client, through.pipeline, through.usage, through.metrics, through.batches
        )
        door = GrpcServer(config, catalog, through.pipeline, upstreams, key) if config.grpc_port else None
        async with through.running():
            if door is not None:
                await door.start()
            working = asyncio.create_task(_work_off(through, outer))
            yield
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            if door is not None:
                await door.stop()
            await gateway.close()
        following.cancel()

    app = FastAPI(title="tidegate", lifespan=lifespan, openapi_url=None)
    app.include_router(router)
    app.include_router(files_api.router)
    app.include_router(batch_api.router)
    app.include_router(console_pages.router)
    app.include_router(metrics_api.router)
    app.add_exception_handler(Exception, _answer_error)
    app.add_exception_handler(GatewayError, _answer_error)
    app.add_exception_handler(HTTPException, _answer_error)
    # Outermost, so that the answer to an unforeseen exception is logged and carries the request's id too.
    outer = AccessLog(BodyDeadline(app, config.body_timeout_s), through.pipeline)
    return outer


async def _work_off(through: Parts, app: ASGIApp) -> None:
    """The batches, until cancelled."""
    if through.batches is None:
        return

    async def ask(batch: BatchRow, principal: Principal, request_id: str, body: bytes) -> InnerAnswer:
        return await inner_calls.ask(
            app,
            batch.endpoint,
            body,
            principal=principal,
            request_id=request_id,
            priority=batch_runner.PRIORITY,
        )

    find = through.pipeline.authenticator.principal_of
    await BatchRunner(through.batches.batches, through.batches.files, find, ask).follow()


def _client(config: GatewayConfig, upstreams: Upstreams) -> BalancedTriton | WakingTriton:
    triton = BalancedTriton(upstreams)
    if not config.scaler_grpc:
        return triton
    return WakingTriton(triton, ScalerClient(config.scaler_grpc), config.wake_timeout_s)


async def _answer_error(request: Request, exc: Exception) -> Response:
    error = _as_gateway_error(exc)
    note_error(call_of(request), error)
    return ErrorAnswer(error)


def _as_gateway_error(exc: Exception) -> GatewayError:
    if isinstance(exc, GatewayError):
        return exc
    if isinstance(exc, HTTPException):
        return from_http_status(exc.status_code)
    return InternalError("the gateway failed; its log says more")
