"""The node's side of the fork server: start it, tell it what to bind and to fork, notice when it is gone.

It is exec'ed, never forked: this process runs gRPC's threads. Its workers are its children, not ours.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence

from python_backend.messages import (
    BindFailed,
    BindModel,
    ForkServerReady,
    ForkServerToNode,
    ModelBound,
    ModelUnbound,
    SpawnWorker,
    UnbindModel,
    WorkerExited,
    WorkerSpawned,
)
from python_backend.node.errors import BindRefused, ForkServerLost
from python_backend.node.peers import Peer, Process

logger = logging.getLogger(__name__)

FORKSERVER_COMMAND = (sys.executable, "-m", "python_backend.worker.forkserver")
STOP_TIMEOUT_S = 5.0


class ForkServer:
    """`on_worker` gets WorkerSpawned and WorkerExited. Raises ForkServerLost when it cannot be started."""

    def __init__(
        self, command: Sequence[str], on_worker: Callable[[WorkerSpawned | WorkerExited], None]
    ) -> None:
        self._on_worker = on_worker
        self._ready = asyncio.Event()
        self._bound: dict[str, asyncio.Future[ModelBound]] = {}
        self._unbound: dict[str, asyncio.Future[None]] = {}
        self._popen, sock = _execute(command)
        self._peer: Peer[ForkServerToNode] = Peer(sock, ForkServerToNode, self._take, self._lose)
        # Not asyncio's subprocess: its `kill` may reap the child under its own watcher, which then invents
        # a status.
        self._exit_status: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._process = Process(self._popen.pid, lambda: self._exit_status.set_result(self._popen.wait()))

    @property
    def pid(self) -> int:
        return self._popen.pid

    async def bind(self, message: BindModel, weights_fd: int) -> ModelBound:
        """Waits until the model's skeleton stands over the weights. Raises BindRefused."""
        await self._ready.wait()
        bound: asyncio.Future[ModelBound] = asyncio.get_running_loop().create_future()
        self._bound[message.model] = bound
        self._peer.send(message, [weights_fd])
        return await bound

    async def unbind(self, model: str) -> None:
        """Waits until the skeleton is gone, and with it the fork server's mapping of the weights."""
        unbound: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unbound[model] = unbound
        self._peer.send(UnbindModel(model))
        await unbound

    def spawn(self, message: SpawnWorker, fds: Sequence[int]) -> bool:
        """False: the fork server is gone; `wait_lost` says so."""
        return self._peer.send(message, fds)

    async def wait_lost(self) -> ForkServerLost:
        """Returns when it has ended, or no longer listens."""
        status = await asyncio.shield(self._exit_status)
        return ForkServerLost(f"the fork server (pid {self.pid}) {describe_exit(status)}; its log is above")

    async def stop(self) -> None:
        """Close its socket, which asks it to go; kill it when it doesn't. Idempotent."""
        self._peer.close()
        try:
            await asyncio.wait_for(asyncio.shield(self._exit_status), STOP_TIMEOUT_S)
        except TimeoutError:
            logger.warning("the fork server (pid %d) does not stop, killing it", self.pid)
            self._process.kill()
            await self._exit_status

    def _take(self, message: ForkServerToNode) -> None:
        match message:
            case ForkServerReady():
                self._ready.set()
            case ModelBound(model=model):
                if (waiting := self._waiting(model)) is not None:
                    waiting.set_result(message)
            case BindFailed(model=model, error=error):
                if (waiting := self._waiting(model)) is not None:
                    waiting.set_exception(BindRefused(f"model {model!r} cannot be bound: {error}"))
            case ModelUnbound(model=model):
                if (unbound := self._unbound.pop(model, None)) is not None and not unbound.done():
                    unbound.set_result(None)
            case _:
                self._on_worker(message)

    def _waiting(self, model: str) -> asyncio.Future[ModelBound] | None:
        bound = self._bound.pop(model, None)
        return None if bound is None or bound.done() else bound

    def _lose(self, reason: str) -> None:
        """Without its socket it is of no use, whatever the process still does."""
        logger.error("lost the fork server (pid %d): %s", self.pid, reason)
        self._process.kill()


def _execute(command: Sequence[str]) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """The process, and our end of the conversation with it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        try:
            popen = subprocess.Popen(
                [*command, "--fd", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr.fileno(),  # our own stdout is for the ready line
                process_group=0,  # Ctrl-C in a terminal is for us; we stop the workers in order
                env={"OMP_WAIT_POLICY": "PASSIVE", **os.environ},
            )
        except OSError as exc:
            ours.close()
            raise ForkServerLost(f"the fork server does not start: {exc}") from exc
    return popen, ours


def describe_exit(status: int) -> str:
    return f"was killed by signal {-status}" if status < 0 else f"exited with status {status}"
