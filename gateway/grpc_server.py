"""The gRPC server in front of Triton: started and stopped with the gateway."""

from __future__ import annotations

import grpc

from contracts.triton_key import grpc_metadata
from gateway.catalog import Catalog
from gateway.config import ConfigError, GatewayConfig
from gateway.grpc_door import GrpcDoor
from gateway.pipeline import Pipeline
from gateway.tls import Tls, grpc_credentials
from gateway.upstreams import Upstreams

MAX_METADATA_BYTES = 16 * 1024
MAX_STREAMS_PER_CONNECTION = 2000
PING_S = 60
"""A client that is gone without a word is noticed after about so long."""


class GrpcServer:
    """Make it inside the event loop that runs it. Raises ConfigError when the port is taken."""

    def __init__(
        self,
        config: GatewayConfig,
        catalog: Catalog,
        pipeline: Pipeline,
        upstreams: Upstreams,
        triton_key: str,
    ) -> None:
        self._grace_s = float(config.drain_grace_s)
        self._door = GrpcDoor(pipeline, upstreams, grpc_metadata(triton_key), catalog)
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_send_message_length", -1),
                ("grpc.max_receive_message_length", config.max_grpc_message_bytes),
                ("grpc.max_metadata_size", MAX_METADATA_BYTES),
                ("grpc.absolute_max_metadata_size", 2 * MAX_METADATA_BYTES),
                ("grpc.max_concurrent_streams", MAX_STREAMS_PER_CONNECTION),
                ("grpc.keepalive_time_ms", PING_S * 1000),
                ("grpc.so_reuseport", 0),
            ]
        )
        self._server.add_generic_rpc_handlers([self._door])
        host = f"[{config.host}]" if ":" in config.host else config.host
        try:
            address = f"{host}:{config.grpc_port}"
            tls = Tls.of(config)
            self.port = (
                self._server.add_secure_port(address, grpc_credentials(tls))
                if tls
                else self._server.add_insecure_port(address)
            )
        except RuntimeError as exc:
            raise ConfigError(f"can't listen on {config.host}:{config.grpc_port}: {exc}") from exc

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        """New calls are refused at once, running ones have the grace."""
        await self._server.stop(self._grace_s)
        await self._door.close()
