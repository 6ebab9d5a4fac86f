"""The port that KEDA calls. One of its own: it has to be reachable in the cluster, and the control API must not."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from types import TracebackType

from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from contracts import externalscaler_pb2_grpc as pb_grpc
from scaler.acting.keda import ExternalScaler, ReplicaSource
from scaler.serving.server import Access, server_of

STOP_S = 2.0
SERVICE = "externalscaler.ExternalScaler"


def open_access(address: str, control: Access) -> Access:
    """For `address` (host:port), with the control port's TLS. These calls change nothing and tell one number a
    model, so nobody is asked who he is, and a cluster's network may do without TLS."""
    host, _, port = address.rpartition(":")
    return replace(control, host=host.strip("[]"), port=int(port), token="", allow_insecure=True)


class KedaServer:
    """`async with KedaServer(...) as server`. Health is on the same port, for a pod's probes."""

    def __init__(self, source: ReplicaSource, access: Access) -> None:
        """Raises ConfigInvalid, NotListening."""
        self._scaler = ExternalScaler(source)
        self._health = health.aio.HealthServicer()
        self._server, self.port = server_of(access)
        pb_grpc.add_ExternalScalerServicer_to_server(self._scaler, self._server)  # type: ignore[no-untyped-call]  # generated
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)

    async def __aenter__(self) -> KedaServer:
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
