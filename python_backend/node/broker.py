"""Brings bridges and workers together, and leases the pool. All of it runs on the daemon's loop, none of it waits.

A bridge attaches -> it gets a warm worker, or waits for one. A worker ends -> its extents return and its instance
gets the next one. A bridge ends -> its slot is free and its worker stops.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from python_backend.board import Board, SlotState, Word
from python_backend.channel import ProtocolError
from python_backend.messages import (
    Attached,
    AttachInstance,
    AttachRefused,
    AttachWorker,
    BridgeToNode,
    Message,
    ModelBound,
    WorkerReady,
    WorkerReplaced,
    WorkerToNode,
)
from python_backend.node.desk import LeaseDesk
from python_backend.node.errors import ModelInUse, ModelUnknown, SlotsExhausted, WorkersKeepDying
from python_backend.node.instances import Instance, InstanceId, Instances, WorkerId
from python_backend.node.peers import Peer
from python_backend.node.pool import Pool
from python_backend.node.quota import ModelQuota
from python_backend.node.spares import SparePlanner, Worker, WorkerState
from python_backend.node.watch import HangWatch, Pulse
from python_backend.node.workers import Workers

logger = logging.getLogger(__name__)

WORKER_WORDS = (
    Word.RUNNING,
    Word.WAITING,
    Word.BLOCKS_USED,
    Word.BLOCKS_LEASED,
    Word.TOKENS_OUT,
    Word.PREEMPTIONS,
    Word.CACHED_TOKENS,
)


@dataclass(frozen=True)
class BoardShare:
    """The board as mapped here, and its memfd to hand on."""

    board: Board
    fd: int


class Broker:
    """`models`: those that will be bound soon, so that an early stub waits; more come by `add_model`."""

    def __init__(
        self,
        models: Sequence[str],
        shared: BoardShare,
        pool: Pool,
        instances: Instances,
        planner: SparePlanner,
        make_workers: Callable[[Callable[[Worker, WorkerToNode], None], Callable[[Worker], None]], Workers],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._model_numbers = itertools.count()
        self.models = {model: next(self._model_numbers) for model in models}
        """Name -> number on the board, which no other model ever gets."""
        self.bound: dict[str, ModelBound] = {}
        self.desk = LeaseDesk(pool, self.bound, self._answer, self._idle_workers, self._loop)
        self.instances = instances
        self.planner = planner
        self.workers = make_workers(self._worker_says, self._worker_gone)
        self._board = shared.board
        self._board_fd = shared.fd
        self._connections = itertools.count(1)
        self._bridges: dict[InstanceId, Peer[BridgeToNode]] = {}
        self._replenishing: asyncio.TimerHandle | None = None
        self._watchers: list[asyncio.Future[None]] = []
        self._is_closing = False

    # --- what comes from outside ---

    def bind(self, bound: ModelBound, quota: ModelQuota) -> None:
        """The model can have workers from now on."""
        self.bound[bound.model] = bound
        if bound.block_bytes:
            self.desk.pool.add_model(bound.model, bound.block_bytes, quota)
        self._replenish()

    def add_model(self, model: str, num_spares: int) -> None:
        """Stubs may attach from now on; it has workers when it is bound."""
        self.models[model] = next(self._model_numbers)
        self.planner.keep(model, num_spares)

    def is_awaited(self, model: str) -> bool:
        """Known, but not bound yet."""
        return model in self.models and model not in self.bound

    async def remove_model(self, model: str) -> None:
        """Returns when its last worker is gone. Raises ModelUnknown, ModelInUse; nothing has changed then."""
        self._check_known(model)
        if attached := self.instances.of_model(model):
            raise ModelInUse(
                f"{len(attached)} instances of {model} are attached ({', '.join(i.name for i in attached)});"
                " unload the model in Triton first"
            )
        del self.models[model]
        while workers := [worker for worker in self.workers.all() if worker.model == model]:
            for worker in workers:
                self.workers.stop(worker)
            await self._next_change()
        if self.bound.pop(model, None) is not None:
            self.desk.pool.remove_model(model)
        self.planner.forget(model)

    def connect(self, sock: socket.socket) -> None:
        """A stub has connected; takes the socket over."""
        connection = InstanceId(next(self._connections))
        self._bridges[connection] = Peer(
            sock, BridgeToNode, partial(self._attach, connection), partial(self._bridge_gone, connection)
        )

    def set_draining(self, model: str, name: str, is_draining: bool) -> Instance:
        """Raises ModelUnknown, InstanceUnknown."""
        self._check_known(model)
        instance = self.instances.named(model, name)
        instance.is_draining = is_draining
        self._publish_state(instance)
        return instance

    async def prepare_spares(self, model: str, num_spares: int) -> int:
        """Returns how many stand by once there are that many. Raises ModelUnknown, WorkersKeepDying."""
        self._check_known(model)
        self.planner.prepare(model, num_spares)
        self._replenish()
        await self.wait_for_spares({model: num_spares})
        return self.workers.num_in(model, WorkerState.SPARE)

    async def wait_for_spares(self, wanted: dict[str, int]) -> None:
        """Raises WorkersKeepDying, and ModelUnknown when one is removed meanwhile."""
        while any(self.workers.num_in(m, WorkerState.SPARE) < n for m, n in wanted.items()):
            for model in wanted:
                self._check_known(model)
                if self.planner.keeps_dying(model):
                    raise WorkersKeepDying(self._dying_text(model))
            await self._next_change()

    async def close(self) -> None:
        """Stop every worker and return when the last is gone; bridges lose their connection."""
        self._is_closing = True
        if self._replenishing:
            self._replenishing.cancel()
        for peer in self._bridges.values():
            peer.close()
        for worker in self.workers.all():
            self.workers.stop(worker)
        while self.workers.all():
            await self._next_change()

    # --- bridges ---

    def _attach(self, connection: InstanceId, message: AttachInstance) -> None:
        if self.instances.get(connection):
            raise ProtocolError("attached twice on one connection")
        if message.model not in self.models:
            self._refuse(
                connection, f"no model {message.model!r} on this node, known: {', '.join(self.models)}"
            )
            return
        try:
            self.instances.add(
                connection, message.model, message.instance, message.pid, int(time.time() * 1000)
            )
        except SlotsExhausted as exc:
            self._refuse(connection, str(exc))
            return
        self._serve_waiting(message.model)
        self._replenish()

    def _refuse(self, connection: InstanceId, reason: str) -> None:
        logger.warning("refused an instance: %s", reason)
        self._bridges[connection].send(AttachRefused(reason))

    def _bridge_gone(self, connection: InstanceId, reason: str) -> None:
        self._bridges.pop(connection).close()
        instance = self.instances.remove(connection)
        if instance is None:
            return
        logger.info("instance %s (stub pid %d): %s", instance.name, instance.stub_pid, reason)
        self._board.set(instance.slot, Word.STATE, SlotState.FREE)
        worker = self.workers.get(instance.worker) if instance.worker else None
        if worker is None:
            self.instances.slots.give_back(instance.slot)
        else:
            worker.slot_to_give_back = instance.slot
            self.workers.stop(worker)
        self._replenish()

    # --- bringing both together ---

    def _serve_waiting(self, model: str) -> None:
        for instance in self.instances.waiting(model):
            while instance.worker is None and (worker := self.workers.spare(model)):
                self._pair(instance, worker)

    def _pair(self, instance: Instance, worker: Worker) -> None:
        bridge_end, worker_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with bridge_end, worker_end:
            if not instance.has_been_attached:
                self._board.clear(instance.slot)
                self._board.set(instance.slot, Word.MODEL, self.models[instance.model])
            message = AttachWorker(instance.name, instance.slot)
            worker.state = WorkerState.ATTACHED
            if not self.workers.send(worker, message, [self._board_fd, worker_end.fileno()]):
                worker.state = WorkerState.STOPPING
                return
            worker.instance, instance.worker = instance.id, worker.id
            self._publish_state(instance)
            self._tell_bridge(instance, worker, bridge_end.fileno())
        instance.has_been_attached = True
        self.planner.attached(self._loop.time())
        logger.info("instance %s (stub pid %d) has worker %d", instance.name, instance.stub_pid, worker.pid)

    def _tell_bridge(self, instance: Instance, worker: Worker, channel_fd: int) -> None:
        bridge = self._bridges[instance.id]
        if instance.has_been_attached:
            bridge.send(WorkerReplaced(worker.pid), [channel_fd])
        else:
            bridge.send(Attached(instance.slot), [self._board_fd, channel_fd])

    def _publish_state(self, instance: Instance) -> None:
        """Without a worker an instance counts as draining: its idle look must not hold its siblings back."""
        if not instance.has_been_attached and instance.worker is None:
            return  # the slot is not its own on the board before the attach
        is_serving = instance.worker is not None and not instance.is_draining
        self._board.set(instance.slot, Word.STATE, SlotState.SERVING if is_serving else SlotState.DRAINING)

    # --- workers ---

    def worker_spawned(self, worker_id: int, pid: int) -> None:
        self.workers.set_pid(WorkerId(worker_id), pid)

    def _worker_says(self, worker: Worker, message: WorkerToNode) -> None:
        match message:
            case WorkerReady(pid=pid):
                self._worker_ready(worker, pid)
            case _:
                self.desk.serve(worker, message)

    def _answer(self, worker: Worker, message: Message) -> None:
        self.workers.send(worker, message)

    def _idle_workers(self) -> list[Worker]:
        """Attached, and with nothing to do by what they wrote on the board."""
        return [
            worker
            for instance in self.instances.all()
            if (worker := self.workers.get(instance.worker) if instance.worker else None)
            and not self._board.get(instance.slot, Word.RUNNING)
            and not self._board.get(instance.slot, Word.WAITING)
        ]

    def kill_hung(self, watch: HangWatch) -> None:
        """Their instances get the next worker, their requests an error."""
        for worker_id in watch.look(self._pulses(), self._loop.time()):
            if worker := self.workers.get(worker_id):
                self.workers.kill(worker, f"no sign of life for {watch.timeout_s:.0f} s with work to do")

    def _pulses(self) -> list[Pulse]:
        return [
            Pulse(
                instance.worker,
                beat=self._board.get(instance.slot, Word.HEARTBEAT),
                has_work=self._board.get(instance.slot, Word.IN_FLIGHT) > 0,
            )
            for instance in self.instances.all()
            if instance.worker
        ]

    def _worker_ready(self, worker: Worker, pid: int) -> None:
        self.workers.set_pid(worker.id, pid)
        if worker.state != WorkerState.WARMING:
            return
        worker.state = WorkerState.SPARE
        self.planner.warmed(worker.model, self.workers.num_in(worker.model, WorkerState.SPARE))
        self._serve_waiting(worker.model)
        self._replenish()
        self._changed()

    def _worker_gone(self, worker: Worker) -> None:
        returned_bytes = self.desk.worker_gone(worker)
        logger.info("worker %d of %s is gone, %d bytes returned", worker.pid, worker.model, returned_bytes)
        if worker.slot_to_give_back is not None:
            self.instances.slots.give_back(worker.slot_to_give_back)
        if worker.state == WorkerState.WARMING:
            self.planner.died_warming(worker.model, self._loop.time())
            self._refuse_hopeless(worker.model)
        instance = self.instances.get(worker.instance) if worker.instance else None
        if instance is not None and instance.worker == worker.id:
            self._orphan(instance)
        self._replenish()
        self._changed()

    def _orphan(self, instance: Instance) -> None:
        instance.worker = None
        instance.worker_restarts += 1
        for word in WORKER_WORDS:
            self._board.set(instance.slot, word, 0)
        self._publish_state(instance)
        if not self._is_closing:
            self._serve_waiting(instance.model)

    def _refuse_hopeless(self, model: str) -> None:
        """When one more has died, whoever waits for a first worker is told; who has been served waits on."""
        if not self.planner.keeps_dying(model):
            return
        for instance in self.instances.waiting(model):
            if not instance.has_been_attached:
                self.instances.remove(instance.id)
                self.instances.slots.give_back(instance.slot)
                self._refuse(instance.id, self._dying_text(model))

    # --- spares ---

    def _replenish(self) -> None:
        if self._is_closing:
            return
        if self._replenishing:
            self._replenishing.cancel()
            self._replenishing = None
        now = self._loop.time()
        demands = [
            self.workers.demand(m, len(self.instances.waiting(m))) for m in self.models if m in self.bound
        ]
        plan = self.planner.plan(demands, now)
        for model in plan.spawn:
            self.workers.start(model)
        if plan.retry_at is not None:
            self._replenishing = self._loop.call_at(plan.retry_at, self._replenish)

    # --- small help ---

    def _check_known(self, model: str) -> None:
        if model not in self.models:
            raise ModelUnknown(f"no model {model!r} on this node, known: {', '.join(self.models)}")

    def _dying_text(self, model: str) -> str:
        return (
            f"unavailable: {self.planner.failures(model)} workers of {model} in a row died while warming up;"
            " the node's log says why"
        )

    async def _next_change(self) -> None:
        change: asyncio.Future[None] = self._loop.create_future()
        self._watchers.append(change)
        await change

    def _changed(self) -> None:
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            if not watcher.done():
                watcher.set_result(None)
