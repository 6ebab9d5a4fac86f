"""The worker processes as the node holds them: a socket that is the lease, a pidfd that ends it.

A worker is gone when its process is, not when its socket closes: as long as it lives it may still write to extents
that the next one would get. Extents therefore return on the process's end, which follows a lost socket by itself or
by SIGKILL.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from python_backend.messages import Message, StopWorker, WorkerToNode
from python_backend.node.instances import WorkerId
from python_backend.node.peers import Peer, Process
from python_backend.node.spares import Demand, Worker, WorkerState

logger = logging.getLogger(__name__)

STOP_TIMEOUT_S = 5.0
EXIT_GRACE_S = 0.1
"""Between a lost socket and SIGKILL: a worker that ends by itself shall end with its own exit status."""
WARM_UP_TIMEOUT_S = 120.0
"""Twenty times a warm-up on a busy two-core machine; a worker that takes longer hangs."""

Spawn = Callable[[Worker, socket.socket], bool]
"""Tell the fork server; the socket is the worker's end and stays the caller's. False: it is gone."""


@dataclass
class _Link:
    worker: Worker
    peer: Peer[WorkerToNode]
    process: Process | None = None
    timers: list[asyncio.TimerHandle] = field(default_factory=list)


class Workers:
    """All workers. `on_message` gets what they say, `on_gone` each one once, when its process has ended."""

    def __init__(
        self,
        spawn: Spawn,
        on_message: Callable[[Worker, WorkerToNode], None],
        on_gone: Callable[[Worker], None],
        stop_timeout_s: float = STOP_TIMEOUT_S,
        warm_up_timeout_s: float = WARM_UP_TIMEOUT_S,
    ) -> None:
        self._spawn = spawn
        self._on_message = on_message
        self._on_gone = on_gone
        self._stop_timeout_s = stop_timeout_s
        self._warm_up_timeout_s = warm_up_timeout_s
        self._loop = asyncio.get_running_loop()
        self._ids = itertools.count(1)
        self._links: dict[WorkerId, _Link] = {}

    def all(self) -> list[Worker]:
        return [link.worker for link in self._links.values()]

    def get(self, worker_id: WorkerId) -> Worker | None:
        link = self._links.get(worker_id)
        return link.worker if link else None

    def num_in(self, model: str, state: WorkerState) -> int:
        return sum(1 for worker in self.all() if worker.model == model and worker.state == state)

    def demand(self, model: str, num_waiting: int) -> Demand:
        return Demand(
            model=model,
            num_spares=self.num_in(model, WorkerState.SPARE),
            num_warming=self.num_in(model, WorkerState.WARMING),
            num_waiting=num_waiting,
        )

    def spare(self, model: str) -> Worker | None:
        """The one that has been warm longest."""
        spares = (w for w in self.all() if w.model == model and w.state == WorkerState.SPARE)
        return next(spares, None)

    def start(self, model: str) -> None:
        worker = Worker(WorkerId(next(self._ids)), model)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        peer: Peer[WorkerToNode] = Peer(
            ours, WorkerToNode, partial(self._on_message, worker), partial(self._lose, worker.id)
        )
        link = self._links[worker.id] = _Link(worker, peer)
        with theirs:
            self._spawn(worker, theirs)
        link.timers.append(
            self._loop.call_later(self._warm_up_timeout_s, self._warm_up_took_too_long, worker.id)
        )

    def set_pid(self, worker_id: WorkerId, pid: int) -> None:
        """From now on the process is watched. Unknown workers and repetitions are ignored."""
        link = self._links.get(worker_id)
        if link is None or link.process is not None:
            return
        link.worker.pid = pid
        try:
            link.process = Process(pid, partial(self._gone, worker_id))
        except ProcessLookupError:
            self._loop.call_soon(self._gone, worker_id)

    def send(self, worker: Worker, message: Message, fds: Sequence[int] = ()) -> bool:
        """False: the worker is lost and never serves again; `on_gone` follows."""
        return self._links[worker.id].peer.send(message, fds)

    def stop(self, worker: Worker) -> None:
        """Ask it to go, and kill it when it has not gone in time."""
        link = self._links.get(worker.id)
        if link is None or worker.state == WorkerState.STOPPING:
            return
        worker.state = WorkerState.STOPPING
        link.timers.append(self._loop.call_later(self._stop_timeout_s, self._stop_took_too_long, worker.id))
        link.peer.send(StopWorker())

    def kill(self, worker: Worker, reason: str) -> None:
        """At once; `on_gone` follows."""
        if worker.id in self._links:
            self._kill(worker.id, reason)

    def _warm_up_took_too_long(self, worker_id: WorkerId) -> None:
        worker = self.get(worker_id)
        if worker and worker.state == WorkerState.WARMING:
            self._kill(worker_id, f"not warm after {self._warm_up_timeout_s:.0f} s")

    def _stop_took_too_long(self, worker_id: WorkerId) -> None:
        self._kill(worker_id, f"still there {self._stop_timeout_s:.0f} s after it was asked to stop")

    def _lose(self, worker_id: WorkerId, reason: str) -> None:
        """The conversation is over: see to it that the process is, too."""
        link = self._links.get(worker_id)
        if link is None:  # its process ended between a send that failed and this notice of it
            return
        worker = link.worker
        log = logger.info if worker.state == WorkerState.STOPPING else logger.warning
        log("worker %d of %s (pid %d): %s", worker.id, worker.model, worker.pid, reason)
        if worker.state == WorkerState.SPARE:
            worker.state = WorkerState.STOPPING  # nobody may pick it any more
        if link.process is None:  # never forked, or gone before the fork server could say its pid
            self._gone(worker_id)
        else:
            link.timers.append(
                self._loop.call_later(EXIT_GRACE_S, self._kill, worker_id, "does not end by itself")
            )

    def _kill(self, worker_id: WorkerId, reason: str) -> None:
        link = self._links[worker_id]
        worker = link.worker
        logger.warning("killing worker %d of %s (pid %d): %s", worker.id, worker.model, worker.pid, reason)
        link.peer.close()
        if link.process is None:
            self._gone(worker_id)
        else:
            link.process.kill()

    def _gone(self, worker_id: WorkerId) -> None:
        link = self._links.pop(worker_id, None)
        if link is None:
            return
        link.peer.close()
        for timer in link.timers:
            timer.cancel()
        self._on_gone(link.worker)
