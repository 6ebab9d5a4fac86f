"""Health of the scaler: it serves while its loop ticks; to answer and decide nothing is not healthy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

LOOK_S = 0.5
MIN_SILENCE_S = 3.0
MISSED_TICKS = 5
"""A tick that found a machine busy is late; five in a row are a loop that hangs."""


class Health:
    """Of `service` and of the whole. `add_to` a server, and `run` it."""

    NAME: str = health.SERVICE_NAME

    def __init__(self, service: str) -> None:
        self._servicer: Any = health.aio.HealthServicer()
        self._services = ("", service)

    def add_to(self, server: grpc.aio.Server) -> None:
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def run(
        self, last_tick_s: Callable[[], float | None], tick_s: float, clock: Callable[[], float]
    ) -> None:
        """Until it is cancelled."""
        while True:
            await self._set(is_serving(last_tick_s(), tick_s, clock()))
            await asyncio.sleep(LOOK_S)

    async def stop(self) -> None:
        """NOT_SERVING from now on, whatever is set later."""
        await self._servicer.enter_graceful_shutdown()

    async def _set(self, serves: bool) -> None:
        response = health_pb2.HealthCheckResponse
        for service in self._services:
            await self._servicer.set(service, response.SERVING if serves else response.NOT_SERVING)


def is_serving(last_tick_s: float | None, tick_s: float, now: float) -> bool:
    return last_tick_s is not None and now - last_tick_s <= max(MIN_SILENCE_S, MISSED_TICKS * tick_s)
