"""The gRPC service of `contracts/node.proto`: rare calls, answered from the broker's state."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import grpc
import grpc.aio

from contracts import node_pb2, node_pb2_grpc
from contracts.stack import ServedModel
from python_backend.board import Board, Word
from python_backend.node.arena import WeightSet
from python_backend.node.broker import Broker
from python_backend.node.config import MAX_SPARES
from python_backend.node.errors import InstanceUnknown, ModelUnknown, NodeError, WorkersKeepDying
from python_backend.node.instances import Instance
from python_backend.node.peers import check_socket_path
from python_backend.node.spares import WorkerState

STATUS_OF_ERROR = {
    ModelUnknown: grpc.StatusCode.NOT_FOUND,
    InstanceUnknown: grpc.StatusCode.NOT_FOUND,
    WorkersKeepDying: grpc.StatusCode.UNAVAILABLE,
}


@dataclass(frozen=True)
class NodeView:
    """What the service tells about."""

    broker: Broker
    board: Board
    served: tuple[ServedModel, ...]
    weights: Mapping[str, WeightSet]
    """By `ServedModel.path`; a set that still loads is not there yet."""


class ControlService(node_pb2_grpc.NodeServicer):
    def __init__(self, view: NodeView) -> None:
        self._view = view

    async def GetStatus(
        self, request: node_pb2.GetStatusRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> node_pb2.NodeStatus:
        return describe(self._view)

    async def PrepareSpares(
        self, request: node_pb2.PrepareSparesRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> node_pb2.PrepareSparesResponse:
        if not 0 <= request.num_spares <= MAX_SPARES:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"num_spares = {request.num_spares}, must be 0 to {MAX_SPARES}",
            )
        try:
            num_spares = await self._view.broker.prepare_spares(request.model, request.num_spares)
        except NodeError as exc:
            await _abort(context, exc)
        return node_pb2.PrepareSparesResponse(num_spares=num_spares)

    async def Drain(
        self, request: node_pb2.DrainRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> node_pb2.InstanceStatus:
        return await self._set_draining(request.model, request.instance, True, context)

    async def Resume(
        self, request: node_pb2.ResumeRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> node_pb2.InstanceStatus:
        return await self._set_draining(request.model, request.instance, False, context)

    async def _set_draining(
        self, model: str, name: str, is_draining: bool, context: grpc.aio.ServicerContext[object, object]
    ) -> node_pb2.InstanceStatus:
        try:
            instance = self._view.broker.set_draining(model, name, is_draining)
        except NodeError as exc:
            await _abort(context, exc)
        return describe_instance(self._view, instance)


async def _abort(context: grpc.aio.ServicerContext[object, object], error: NodeError) -> NoReturn:
    await context.abort(STATUS_OF_ERROR.get(type(error), grpc.StatusCode.INTERNAL), str(error))
    raise AssertionError("abort raises")


async def start_control(path: Path, view: NodeView) -> grpc.aio.Server:
    """Serving on return. The caller stops it. Raises ConfigInvalid when the path is too long for a socket."""
    check_socket_path(path)
    server = grpc.aio.server()
    node_pb2_grpc.add_NodeServicer_to_server(ControlService(view), server)  # type: ignore[no-untyped-call]
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    return server


def describe(view: NodeView) -> node_pb2.NodeStatus:
    broker = view.broker
    stats = broker.desk.pool.stats()
    return node_pb2.NodeStatus(
        pid=os.getpid(),
        pool=node_pb2.PoolStatus(
            total_bytes=stats.total_bytes,
            leased_bytes=stats.leased_bytes,
            free_bytes=stats.free_bytes,
            largest_free_bytes=stats.largest_free_bytes,
            high_water_bytes=stats.high_water_bytes,
            weights_bytes=sum(weights.num_bytes for weights in view.weights.values()),
        ),
        models=[_describe_model(view, served) for served in view.served],
        instances=[describe_instance(view, instance) for instance in broker.instances.all()],
        workers=_describe_workers(broker),
    )


def _describe_model(view: NodeView, served: ServedModel) -> node_pb2.ModelStatus:
    broker = view.broker
    weights = view.weights.get(served.path)
    bound = broker.bound.get(served.name)
    return node_pb2.ModelStatus(
        name=served.name,
        kind=served.kind,
        weights_bytes=weights.num_bytes if weights else 0,
        num_spares=broker.workers.num_in(served.name, WorkerState.SPARE),
        num_instances=len(broker.instances.of_model(served.name)),
        block_bytes=bound.block_bytes if bound else 0,
        max_context_tokens=bound.max_context_tokens if bound else 0,
        fingerprint=weights.fingerprint if weights else "",
    )


def describe_instance(view: NodeView, instance: Instance) -> node_pb2.InstanceStatus:
    def word(which: Word) -> int:
        # before the first attach the slot's words are those of its last user
        return view.board.get(instance.slot, which) if instance.has_been_attached else 0

    worker = view.broker.workers.get(instance.worker) if instance.worker else None
    return node_pb2.InstanceStatus(
        model=instance.model,
        instance=instance.name,
        stub_pid=instance.stub_pid,
        worker_pid=worker.pid if worker else 0,
        state=instance.state,
        in_flight=word(Word.IN_FLIGHT),
        landed=word(Word.LANDED),
        slot=instance.slot,
        attached_unix_ms=instance.attached_unix_ms,
        worker_restarts=instance.worker_restarts,
        num_running=word(Word.RUNNING),
        num_waiting=word(Word.WAITING),
    )


def _describe_workers(broker: Broker) -> list[node_pb2.WorkerStatus]:
    statuses = []
    for worker in broker.workers.all():
        instance = broker.instances.get(worker.instance) if worker.instance else None
        statuses.append(
            node_pb2.WorkerStatus(
                pid=worker.pid,
                model=worker.model,
                state=worker.state,
                instance=instance.name if instance else "",
                leased_bytes=broker.desk.pool.leased_bytes(worker.id),
            )
        )
    return statuses
