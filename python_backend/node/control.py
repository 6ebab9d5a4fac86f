"""The gRPC service of `contracts/node.proto`: rare calls, answered from the broker's state."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import grpc
import grpc.aio
import msgspec

from contracts import node_pb2, node_pb2_grpc
from contracts.stack import ServedModel
from python_backend.board import Board, Word
from python_backend.node.broker import Broker
from python_backend.node.config import MAX_SPARES
from python_backend.node.errors import (
    BindRefused,
    CheckpointError,
    InstanceUnknown,
    ModelInUse,
    ModelInvalid,
    ModelNameTaken,
    ModelUnknown,
    NodeError,
    PoolError,
    WeightsDiffer,
    WeightsHeld,
    WeightsTooLarge,
    WeightsUnknown,
    WorkersKeepDying,
)
from python_backend.node.hosting import ModelHost
from python_backend.node.instances import Instance
from python_backend.node.memory_watch import MAX_PERIOD_MS, MIN_PERIOD_MS, sample_of
from python_backend.node.peers import check_socket_path
from python_backend.node.pool_status import RecentHighWater, describe_extents, describe_pool, fill_model
from python_backend.node.residency import Resident
from python_backend.node.spares import WorkerState

Result = TypeVar("Result")

STATUS_OF_ERROR: dict[type[NodeError], grpc.StatusCode] = {
    ModelUnknown: grpc.StatusCode.NOT_FOUND,
    InstanceUnknown: grpc.StatusCode.NOT_FOUND,
    WeightsUnknown: grpc.StatusCode.NOT_FOUND,
    WorkersKeepDying: grpc.StatusCode.UNAVAILABLE,
    ModelNameTaken: grpc.StatusCode.ALREADY_EXISTS,
    ModelInvalid: grpc.StatusCode.INVALID_ARGUMENT,
    CheckpointError: grpc.StatusCode.INVALID_ARGUMENT,
    BindRefused: grpc.StatusCode.INVALID_ARGUMENT,
    WeightsTooLarge: grpc.StatusCode.RESOURCE_EXHAUSTED,
    PoolError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ModelInUse: grpc.StatusCode.FAILED_PRECONDITION,
    WeightsHeld: grpc.StatusCode.FAILED_PRECONDITION,
    WeightsDiffer: grpc.StatusCode.FAILED_PRECONDITION,
}
"""An error that is not named has its nearest base's status."""


@dataclass(frozen=True)
class NodeView:
    """What the service tells about."""

    broker: Broker
    board: Board
    host: ModelHost
    configured: tuple[ServedModel, ...]
    """What serves from the start; told about while it still loads, too."""
    recent: RecentHighWater

    def served(self) -> list[ServedModel]:
        loading = [model for model in self.configured if self.broker.is_awaited(model.name)]
        return [*self.host.served.values(), *loading]


class ControlService(node_pb2_grpc.NodeServicer):
    def __init__(self, view: NodeView) -> None:
        self._view = view
        self._changes: set[asyncio.Task[Any]] = set()

    async def GetStatus(
        self, request: node_pb2.GetStatusRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> node_pb2.NodeStatus:
        return describe(self._view, with_extents=request.with_extents)

    async def WatchMemory(
        self, request: node_pb2.WatchMemoryRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> AsyncIterator[node_pb2.MemorySample]:
        if not MIN_PERIOD_MS <= request.period_ms <= MAX_PERIOD_MS:
            text = f"period_ms = {request.period_ms}, must be {MIN_PERIOD_MS} to {MAX_PERIOD_MS}"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
        broker = self._view.broker
        pool, period_s = broker.desk.pool, request.period_ms / 1000
        mark = pool.watch_high_water()
        due_s = time.monotonic()
        try:
            while True:
                instances = [describe_instance(self._view, each) for each in broker.instances.all()]
                yield sample_of(pool, mark, list(broker.bound), instances, time.monotonic())
                due_s = max(due_s + period_s, time.monotonic())
                await asyncio.sleep(due_s - time.monotonic())
        finally:
            mark.close()

    async def PrepareSpares(
        self, request: node_pb2.PrepareSparesRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> node_pb2.PrepareSparesResponse:
        await _check_num_spares(request.num_spares, context)
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

    async def ServeModel(
        self, request: node_pb2.ServeModelRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> node_pb2.ModelStatus:
        await _check_num_spares(request.num_spares, context)
        try:
            served = msgspec.json.decode(request.served_model_json, type=ServedModel)
        except msgspec.MsgspecError as exc:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"served_model_json: {exc}")
        await self._change(self._view.host.serve(served, request.num_spares), context)
        return _describe_model(self._view, served)

    async def DropModel(
        self, request: node_pb2.DropModelRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> node_pb2.DropModelResponse:
        await self._change(self._view.host.drop(request.model), context)
        return node_pb2.DropModelResponse()

    async def EvictWeights(
        self, request: node_pb2.EvictWeightsRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> node_pb2.WeightsStatus:
        fingerprint = self._view.host.keeper.digest(request.key)
        evicted = await self._change(self._view.host.evict(request.key), context)
        return describe_weights(evicted, fingerprint)

    async def PinWeights(
        self, request: node_pb2.PinWeightsRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> node_pb2.WeightsStatus:
        try:
            pinned = self._view.host.keeper.residency.pin(request.key, request.is_pinned)
        except NodeError as exc:
            await _abort(context, exc)
        return describe_weights(pinned, self._view.host.keeper.digest(request.key))

    async def _change(
        self, work: Coroutine[Any, Any, Result], context: grpc.aio.ServicerContext[object, object]
    ) -> Result:
        """A change is whole or not at all: it goes on when the caller has given up."""
        task = asyncio.create_task(work)
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        try:
            return await asyncio.shield(task)
        except NodeError as exc:
            await _abort(context, exc)

    async def _set_draining(
        self, model: str, name: str, is_draining: bool, context: grpc.aio.ServicerContext[object, object]
    ) -> node_pb2.InstanceStatus:
        try:
            instance = self._view.broker.set_draining(model, name, is_draining)
        except NodeError as exc:
            await _abort(context, exc)
        return describe_instance(self._view, instance)


async def _abort(context: grpc.aio.ServicerContext[object, object], error: NodeError) -> NoReturn:
    await context.abort(status_of(error), str(error))
    raise AssertionError("abort raises")


def status_of(error: NodeError) -> grpc.StatusCode:
    for kind in type(error).__mro__:
        if kind in STATUS_OF_ERROR:
            return STATUS_OF_ERROR[kind]
    return grpc.StatusCode.INTERNAL


async def _check_num_spares(num_spares: int, context: grpc.aio.ServicerContext[object, object]) -> None:
    if not 0 <= num_spares <= MAX_SPARES:
        await context.abort(
            grpc.StatusCode.INVALID_ARGUMENT, f"num_spares = {num_spares}, must be 0 to {MAX_SPARES}"
        )


async def start_control(path: Path, view: NodeView) -> grpc.aio.Server:
    """Serving on return. The caller stops it. Raises ConfigInvalid when the path is too long for a socket."""
    check_socket_path(path)
    server = grpc.aio.server()
    node_pb2_grpc.add_NodeServicer_to_server(ControlService(view), server)  # type: ignore[no-untyped-call]
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    return server


def describe(view: NodeView, *, with_extents: bool = False) -> node_pb2.NodeStatus:
    broker = view.broker
    pool = describe_pool(broker.desk.pool, view.recent.value(time.monotonic()))
    pool.weights_bytes = view.host.keeper.residency.used_bytes()
    pool.weights_budget_bytes = view.host.keeper.residency.budget_bytes
    pid_of_owner = {int(worker.id): worker.pid for worker in broker.workers.all()}
    return node_pb2.NodeStatus(
        pid=os.getpid(),
        pool=pool,
        models=[_describe_model(view, served) for served in view.served()],
        instances=[describe_instance(view, instance) for instance in broker.instances.all()],
        workers=_describe_workers(broker),
        weights=[
            describe_weights(resident, view.host.keeper.digest(resident.key))
            for resident in view.host.keeper.residency.all()
        ],
        extents=describe_extents(broker.desk.pool, pid_of_owner) if with_extents else [],
    )


def _describe_model(view: NodeView, served: ServedModel) -> node_pb2.ModelStatus:
    broker = view.broker
    weights = view.host.keeper.of_model(served.name)
    bound = broker.bound.get(served.name)
    status = node_pb2.ModelStatus(
        name=served.name,
        kind=served.kind,
        weights_bytes=weights.num_bytes if weights else 0,
        num_spares=broker.workers.num_in(served.name, WorkerState.SPARE),
        num_instances=len(broker.instances.of_model(served.name)),
        block_bytes=bound.block_bytes if bound else 0,
        max_context_tokens=bound.max_context_tokens if bound else 0,
        fingerprint=view.host.keeper.digest(weights.key) if weights else "",
        precision=served.precision,
        kv_precision=served.kv_precision,
        kv_floor_bytes=served.kv_floor_bytes,
        kv_ceiling_bytes=served.kv_ceiling_bytes,
    )
    fill_model(status, broker.desk.pool.model_stats(served.name), bound.block_tokens if bound else 0)
    return status


def describe_weights(resident: Resident, fingerprint: str) -> node_pb2.WeightsStatus:
    return node_pb2.WeightsStatus(
        key=resident.key,
        path=str(resident.folder),
        precision=resident.precision,
        num_bytes=resident.num_bytes,
        is_pinned=resident.is_pinned,
        models=sorted(resident.models),
        last_used_unix_ms=int(resident.last_used * 1000),
        fingerprint=fingerprint,
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
        cap=word(Word.CAP),
        num_preempted=word(Word.PREEMPTIONS),
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
