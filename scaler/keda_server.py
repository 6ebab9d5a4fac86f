"""The port that KEDA calls. One of its own: it has to be reachable in the cluster, and the control API must not."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from contracts import externalscaler_pb2_grpc as pb_grpc
from scaler.keda import ExternalScaler, ReplicaSource

STOP_S = 2.0
SERVICE = "externalscaler.ExternalScaler"


class KedaServer:
    """`async with KedaServer(...) as server`. Health is on the same port, for a pod's probes."""

    def __init__(
        self,
        source: ReplicaSource,
        address: str = "127.0.0.1:9003",
        tls: grpc.ServerCredentials | None = None,
    ) -> None:
        self._scaler = ExternalScaler(source)
        self._health = health.aio.HealthServicer()
        self._address = address
        self._tls = tls
        self.port = 0

    async def __aenter__(self) -> KedaServer:
        self._server = grpc.aio.server()
        pb_grpc.add_ExternalScalerServicer_to_server(self._scaler, self._server)  # type: ignore[no-untyped-call]  # generated
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        if self._tls:
            self.port = self._server.add_secure_port(self._address, self._tls)
        else:
            self.port = self._server.add_insecure_port(self._address)
        self._running = asyncio.create_task(self._scaler.run())
        await self._server.start()
        await self._health.set(SERVICE, health_pb2.HealthCheckResponse.SERVING)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._health.enter_graceful_shutdown()
        self._scaler.close()
        await self._server.stop(STOP_S)
        self._running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._running
