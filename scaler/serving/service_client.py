"""Calls to a scaler (contracts/scaler.proto), for the command line and whoever else is no part of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc

from contracts import scaler_pb2 as pb
from contracts import scaler_pb2_grpc as pb_grpc
from scaler.errors import ScaleError, ScalerRefused, ScalerUnreachable

CALL_TIMEOUT_S = 10.0
_NO_ANSWER = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
_REFUSALS = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.ABORTED,
)


class ScalerClient:
    """Raises what `scaler.errors` names, never grpc's own errors. Close it."""

    def __init__(
        self, address: str, *, token: str = "", credentials: grpc.ChannelCredentials | None = None
    ) -> None:
        self.address = address
        if credentials is None:
            self._channel = grpc.aio.insecure_channel(address)
        else:
            self._channel = grpc.aio.secure_channel(address, credentials)
        self._stub: Any = pb_grpc.ScalerStub(self._channel)  # type: ignore[no-untyped-call]  # generated
        self._metadata = (("authorization", f"Bearer {token}"),) if token else None

    async def close(self) -> None:
        await self._channel.close()

    async def status(self, models: Sequence[str] = ()) -> pb.ScalerStatus:
        reply: pb.ScalerStatus = await self._call("GetStatus", pb.GetStatusRequest(models=models))
        return reply

    async def watch(self, models: Sequence[str] = ()) -> AsyncIterator[pb.Decision]:
        """The last decision of each model, then each new one. Raises ScalerUnreachable when the scaler stops."""
        call = self._stub.WatchDecisions(pb.WatchDecisionsRequest(models=models), metadata=self._metadata)
        try:
            async for decision in call:
                yield decision
        except grpc.aio.AioRpcError as exc:
            raise self._translate(exc) from exc

    async def set_policy(self, request: pb.SetPolicyRequest) -> pb.PolicyRevision:
        reply: pb.PolicyRevision = await self._call("SetPolicy", request)
        return reply

    async def policy(self, revision: int = 0) -> pb.Policy:
        reply: pb.Policy = await self._call("GetPolicy", pb.GetPolicyRequest(revision=revision))
        return reply

    async def pause(self, request: pb.PauseRequest) -> None:
        await self._call("Pause", request)

    async def resume(self, model: str) -> None:
        """ "": all models."""
        await self._call("Resume", pb.ResumeRequest(model=model))

    async def scale_to(self, request: pb.ScaleToRequest) -> pb.Override:
        reply: pb.Override = await self._call("ScaleTo", request)
        return reply

    async def reserve(self, request: pb.ReserveRequest) -> pb.Reservation:
        reply: pb.Reservation = await self._call("Reserve", request)
        return reply

    async def reservations(self, model: str = "") -> Sequence[pb.Reservation]:
        reply = await self._call("ListReservations", pb.ListReservationsRequest(model=model))
        listed: Sequence[pb.Reservation] = reply.reservations
        return listed

    async def cancel(self, name: str) -> None:
        await self._call("Cancel", pb.CancelRequest(name=name))

    async def wake(self, model: str, num_waiting: int) -> None:
        await self._call("Wake", pb.WakeRequest(model=model, num_waiting=num_waiting))

    async def _call(self, method: str, request: Any) -> Any:
        try:
            return await getattr(self._stub, method)(request, timeout=CALL_TIMEOUT_S, metadata=self._metadata)
        except grpc.aio.AioRpcError as exc:
            raise self._translate(exc) from exc

    def _translate(self, exc: grpc.aio.AioRpcError) -> ScaleError:
        if exc.code() in _NO_ANSWER:
            return ScalerUnreachable(f"no answer from the scaler at {self.address}: {exc.details()}")
        if exc.code() == grpc.StatusCode.UNAUTHENTICATED:
            return ScalerRefused(f"the scaler at {self.address} asks for a token: {exc.details()}")
        if exc.code() in _REFUSALS:
            return ScalerRefused(exc.details() or exc.code().name)
        return ScaleError(f"scaler at {self.address}: {exc.code().name}: {exc.details()}")
