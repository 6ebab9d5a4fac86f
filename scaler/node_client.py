"""The node daemon's control calls (contracts/node.proto) over its Unix socket."""

from __future__ import annotations

from typing import Any

import grpc
import msgspec

from contracts import node_pb2, node_pb2_grpc
from contracts.stack import ServedModel
from scaler.acting.instance_update import InstanceLoad
from scaler.errors import NodeRefused, NodeUnreachable, ScaleError
from scaler.serving.channels import connect

CALL_TIMEOUT_S = 5.0
_REFUSALS = (
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
)


class NodeClient:
    """Raises what `scaler.errors` names, never grpc's own errors. Close it."""

    def __init__(self, socket_path: str) -> None:
        self.socket_path = socket_path
        self._channel = connect(f"unix:{socket_path}")
        self._stub: Any = node_pb2_grpc.NodeStub(self._channel)  # type: ignore[no-untyped-call]  # generated

    async def close(self) -> None:
        await self._channel.close()

    async def status(self, *, with_extents: bool = False) -> node_pb2.NodeStatus:
        request = node_pb2.GetStatusRequest(with_extents=with_extents)
        reply: node_pb2.NodeStatus = await self._call("GetStatus", request, CALL_TIMEOUT_S)
        return reply

    async def loads(self, model: str) -> list[InstanceLoad]:
        """The model's attached instances."""
        status = await self.status()
        return [to_load(entry) for entry in status.instances if entry.model == model]

    async def drain(self, model: str, instance: str) -> InstanceLoad:
        request = node_pb2.DrainRequest(model=model, instance=instance)
        return to_load(await self._call("Drain", request, CALL_TIMEOUT_S))

    async def resume(self, model: str, instance: str) -> None:
        await self._call("Resume", node_pb2.ResumeRequest(model=model, instance=instance), CALL_TIMEOUT_S)

    async def prepare_spares(self, model: str, num_spares: int, timeout_s: float) -> bool:
        """Returns when so many warm workers stand by; False: they are still warming after `timeout_s`."""
        request = node_pb2.PrepareSparesRequest(model=model, num_spares=num_spares)
        try:
            await self._stub.PrepareSpares(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as exc:
            if exc.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
                return False
            raise self._translate(exc) from exc
        return True

    async def serve_model(
        self, served: ServedModel, num_spares: int, timeout_s: float
    ) -> node_pb2.ModelStatus:
        """Load, bind and warm one more model. The node goes on when `timeout_s` passes: ask again, or drop it."""
        request = node_pb2.ServeModelRequest(
            served_model_json=msgspec.json.encode(served).decode(), num_spares=num_spares
        )
        reply: node_pb2.ModelStatus = await self._call("ServeModel", request, timeout_s)
        return reply

    async def drop_model(self, model: str, timeout_s: float) -> None:
        """Its weights stay resident. NodeRefused while instances of it are attached."""
        await self._call("DropModel", node_pb2.DropModelRequest(model=model), timeout_s)

    async def evict_weights(self, key: str) -> node_pb2.WeightsStatus:
        """What is gone now. NodeRefused while it is pinned or a model is bound to it."""
        request = node_pb2.EvictWeightsRequest(key=key)
        reply: node_pb2.WeightsStatus = await self._call("EvictWeights", request, CALL_TIMEOUT_S)
        return reply

    async def pin_weights(self, key: str, is_pinned: bool = True) -> node_pb2.WeightsStatus:
        request = node_pb2.PinWeightsRequest(key=key, is_pinned=is_pinned)
        reply: node_pb2.WeightsStatus = await self._call("PinWeights", request, CALL_TIMEOUT_S)
        return reply

    async def _call(self, method: str, request: Any, timeout_s: float) -> Any:
        try:
            return await getattr(self._stub, method)(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as exc:
            raise self._translate(exc) from exc

    def _translate(self, exc: grpc.aio.AioRpcError) -> ScaleError:
        if exc.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
            return NodeUnreachable(f"no answer from the node daemon at {self.socket_path}: {exc.details()}")
        if exc.code() in _REFUSALS:
            return NodeRefused(exc.details() or exc.code().name)
        return ScaleError(f"node daemon: {exc.code().name}: {exc.details()}")


def to_load(entry: node_pb2.InstanceStatus) -> InstanceLoad:
    return InstanceLoad(
        instance=entry.instance,
        stub_pid=entry.stub_pid,
        in_flight=entry.in_flight,
        landed=entry.landed,
        attached_unix_ms=entry.attached_unix_ms,
        is_draining=entry.state == "draining",
        has_worker=entry.worker_pid != 0,
    )
