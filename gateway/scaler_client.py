"""What the gateway asks of the scaler (contracts/scaler.proto): to wake a model, which may rest,
and which can grow no more."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc

from contracts import scaler_pb2, scaler_pb2_grpc

TOKEN_VARIABLE = "TIDEGATE_SCALER_TOKEN"  # noqa: S105 - the variable's name; the scaler reads the same one
CALL_TIMEOUT_S = 2.0


class WakeRefused(Exception):
    """The scaler will not wake this model: its policy does not name it, or it does not let the gateway in."""


class ScalerSilent(Exception):
    """No answer: it may be starting again."""


class ScalerClient:
    """Make it inside the event loop that uses it. Close it."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._channel = grpc.aio.insecure_channel(address)
        self._stub: Any = scaler_pb2_grpc.ScalerStub(self._channel)  # type: ignore[no-untyped-call]
        token = os.environ.get(TOKEN_VARIABLE)
        self._metadata = (("authorization", f"Bearer {token}"),) if token else None

    async def close(self) -> None:
        await self._channel.close()

    async def wake(self, model: str, num_waiting: int) -> None:
        """Raises WakeRefused, ScalerSilent."""
        await self._call("Wake", scaler_pb2.WakeRequest(model=model, num_waiting=num_waiting))

    async def resting(self, models: Sequence[str]) -> set[str]:
        """Those of `models` that may have no instance by the policy. Raises WakeRefused, ScalerSilent."""
        status = await self._call("GetStatus", scaler_pb2.GetStatusRequest(models=models))
        return {one.model for one in status.models if one.is_managed and one.min_instances == 0}

    async def saturated(self) -> set[str]:
        """Models at their maximum whose queue still grows. Raises WakeRefused, ScalerSilent."""
        status = await self._call("GetStatus", scaler_pb2.GetStatusRequest())
        return {one.model for one in status.models if one.is_saturated}

    async def status(self) -> Any:
        """A ScalerStatus. Raises WakeRefused, ScalerSilent."""
        return await self._call("GetStatus", scaler_pb2.GetStatusRequest())

    async def watch_decisions(self) -> AsyncIterator[Any]:
        """The last Decision of each model, then each new one. Raises WakeRefused, ScalerSilent when it ends."""
        stream = self._stub.WatchDecisions(scaler_pb2.WatchDecisionsRequest(), metadata=self._metadata)
        try:
            async for decision in stream:
                yield decision
        except grpc.aio.AioRpcError as exc:
            raise self._translated(exc) from exc

    async def _call(self, method: str, request: Any) -> Any:
        call = getattr(self._stub, method)
        try:
            return await call(request, timeout=CALL_TIMEOUT_S, metadata=self._metadata)
        except grpc.aio.AioRpcError as exc:
            raise self._translated(exc) from exc

    def _translated(self, exc: grpc.aio.AioRpcError) -> WakeRefused | ScalerSilent:
        if exc.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
            return ScalerSilent(f"the scaler at {self._address} does not answer")
        return WakeRefused(exc.details() or exc.code().name)
