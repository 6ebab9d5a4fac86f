"""Who tells the console what: the scaler, the node, Triton, each on its own. One silent silences no other."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import httpx

from contracts import node_pb2, node_pb2_grpc
from gateway.console.arena import as_runs, cells
from gateway.scaler_client import ScalerClient, ScalerSilent, WakeRefused

logger = logging.getLogger("gateway.console")

ASK_S = 1.0
TIMEOUT_S = 2.0
RETRY_S = 2.0
MAX_DECISIONS = 500
STALE_S = 5.0
"""What was told longer ago is shown as not known."""
MAX_METRICS_BYTES = 4 * 1024 * 1024
_PENDING = re.compile(
    r'^nv_inference_pending_request_count\{model="([^"]+)"[^}]*\} ([0-9.e+]+)$', re.MULTILINE
)


class Source:
    """How one of them is: off (not configured), waiting (nothing heard yet), ok, or down and why."""

    def __init__(self, name: str, *, is_configured: bool) -> None:
        self.name = name
        self.is_configured = is_configured
        self.error = ""
        self._told_s: float | None = None

    def told(self) -> None:
        if self.error:
            logger.info("console: %s answers again", self.name)
        self.error = ""
        self._told_s = time.monotonic()

    def failed(self, text: str) -> None:
        if not self.error:
            logger.info("console: %s does not answer: %s", self.name, text)
        self.error = text[:300]

    @property
    def is_fresh(self) -> bool:
        return self._told_s is not None and time.monotonic() - self._told_s <= STALE_S

    def state(self) -> dict[str, Any]:
        if not self.is_configured:
            return {"name": self.name, "state": "off", "error": "this stack runs without it"}
        if self.error or (self._told_s is not None and not self.is_fresh):
            return {"name": self.name, "state": "down", "error": self.error or "silent for some seconds"}
        return {"name": self.name, "state": "ok" if self.is_fresh else "waiting", "error": ""}

    async def repeat(self, ask: Callable[[], Awaitable[None]]) -> None:
        """Until cancelled: once a second, slower while it fails."""
        while True:
            try:
                await ask()
            except (ScalerSilent, WakeRefused, grpc.aio.AioRpcError, httpx.HTTPError, OSError) as exc:
                self.failed(_why(exc))
                await asyncio.sleep(RETRY_S)
            else:
                self.told()
                await asyncio.sleep(ASK_S)


class ScalerSource(Source):
    """`status`: the scaler's GetStatus; `decisions`: of WatchDecisions, the newest last."""

    def __init__(self, address: str) -> None:
        super().__init__("scaler", is_configured=bool(address))
        self._address = address
        self._status: Any = None
        self.decisions: deque[Any] = deque(maxlen=MAX_DECISIONS)

    @property
    def status(self) -> Any:
        """None: not known now."""
        return self._status if self.is_fresh else None

    async def follow(self) -> None:
        """Until cancelled."""
        client = ScalerClient(self._address)

        async def ask() -> None:
            self._status = await client.status()

        async def watch() -> None:
            while True:
                try:
                    async for decision in client.watch_decisions():
                        self._note(decision)
                except (ScalerSilent, WakeRefused) as exc:
                    logger.debug("decisions are not told: %s", exc)
                await asyncio.sleep(RETRY_S)

        try:
            await asyncio.gather(self.repeat(ask), watch())
        finally:
            await client.close()

    def _note(self, decision: Any) -> None:
        """The last decision of a model is told again at each new connection."""
        same = (decision.model, decision.at_unix_s, decision.trouble)
        if not any((one.model, one.at_unix_s, one.trouble) == same for one in self.decisions):
            self.decisions.append(decision)


class NodeSource(Source):
    """`memory`: the latest sample of the pool; `status`: its extents too, asked for while somebody looks."""

    def __init__(self, socket_path: str, is_watched: Callable[[], bool]) -> None:
        super().__init__("node", is_configured=bool(socket_path))
        self._socket_path = socket_path
        self._is_watched = is_watched
        self._memory: Any = None
        self._status: Any = None
        self._arena: dict[str, Any] | None = None
        self._high_water_bytes = 0

    @property
    def arena(self) -> dict[str, Any] | None:
        """`arena.as_runs` of the status."""
        return self._arena if self.is_fresh else None

    @property
    def memory(self) -> Any:
        return self._memory if self.is_fresh else None

    @property
    def status(self) -> Any:
        """Two seconds old at most while somebody looks; older before that."""
        return self._status if self.is_fresh else None

    def take_high_water_bytes(self) -> int | None:
        """The most that was held since the last time this was asked."""
        if not self.is_fresh:
            return None
        most, self._high_water_bytes = self._high_water_bytes, 0
        return most

    async def follow(self) -> None:
        """Until cancelled."""
        channel = grpc.aio.insecure_channel(f"unix:{self._socket_path}")
        stub: Any = node_pb2_grpc.NodeStub(channel)  # type: ignore[no-untyped-call]  # generated

        async def watch() -> None:
            request = node_pb2.WatchMemoryRequest(period_ms=int(ASK_S * 1000))
            async for sample in stub.WatchMemory(request):
                self._memory = sample
                self._high_water_bytes = max(self._high_water_bytes, sample.high_water_bytes)
                self.told()

        async def look() -> None:
            while True:
                if self._is_watched() or self._status is None:
                    try:
                        request = node_pb2.GetStatusRequest(with_extents=True)
                        status = await stub.GetStatus(request, timeout=TIMEOUT_S)
                        self._status, self._arena = status, await asyncio.to_thread(_arena_of, status)
                    except grpc.aio.AioRpcError as exc:
                        logger.debug("the node does not tell its extents: %s", exc.details())
                await asyncio.sleep(2 * ASK_S)

        try:
            await asyncio.gather(self.repeat(watch), look())
        finally:
            await channel.close()


class TritonSource(Source):
    """`pending`: requests that wait inside Triton, per model."""

    def __init__(self, metrics_address: str) -> None:
        super().__init__("triton", is_configured=bool(metrics_address))
        self._url = f"http://{metrics_address}/metrics"
        self._pending: dict[str, int] = {}

    @property
    def pending(self) -> dict[str, int] | None:
        return self._pending if self.is_fresh else None

    async def follow(self) -> None:
        """Until cancelled."""
        async with httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False) as client:

            async def ask() -> None:
                reply = await client.get(self._url)
                reply.raise_for_status()
                self._pending = pending_of(reply.text[:MAX_METRICS_BYTES])

            await self.repeat(ask)


def _arena_of(status: Any) -> dict[str, Any]:
    """Thousands of extents take milliseconds: off the event loop."""
    return as_runs(cells(status.extents, status.pool.total_bytes))


def pending_of(text: str) -> dict[str, int]:
    """Model -> requests, its versions together."""
    found: dict[str, int] = {}
    for model, value in _PENDING.findall(text):
        found[model] = found.get(model, 0) + int(float(value))
    return found


def _why(exc: Exception) -> str:
    if isinstance(exc, grpc.aio.AioRpcError):
        return f"{exc.code().name.lower()}: {exc.details()}"
    return str(exc) or type(exc).__name__
