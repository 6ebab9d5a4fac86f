"""The instance's tie to the node: attach, get a worker, get the next one when it dies.

The connection is the instance's lease: when this process goes, the node sees it close.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass

from python_backend.board import Board, SlotState, Word
from python_backend.bridge.errors import AttachFailed, WorkerUnavailable
from python_backend.channel import FrameChannel, PacketChannel, PeerLost, close_fds
from python_backend.messages import (
    Attached,
    AttachInstance,
    AttachRefused,
    BridgeToWorker,
    NodeToBridge,
    WorkerReplaced,
    WorkerToBridge,
)

log = logging.getLogger(__name__)

NODE_SOCKET_VARIABLE = "TIDEGATE_NODE_SOCKET"
ATTACH_TIMEOUT_S = 60.0
"""A cold worker of a large model may have to be forked and warmed first."""
REPLACEMENT_TIMEOUT_S = 5.0
"""How long a request waits for the next worker after one died."""


@dataclass(frozen=True)
class InstanceName:
    """Triton's name of a model instance: group "chat-0", number 0."""

    model: str
    group: str

    @classmethod
    def of(cls, args: dict[str, str]) -> InstanceName:
        return cls(args["model_name"], args["model_instance_name"].rpartition("_")[0])


class Attachment:
    """One instance attached to the node.

    `on_messages` is called on the receiver thread with what the worker sent; `on_worker_lost` on the same
    thread when it died, before the next one is used.
    """

    def __init__(
        self,
        name: InstanceName,
        cap: int,
        on_messages: Callable[[list[WorkerToBridge]], None],
        on_worker_lost: Callable[[], None],
    ) -> None:
        """Blocks until a worker is there. Raises AttachFailed."""
        self.cap = cap
        self._on_messages = on_messages
        self._on_worker_lost = on_worker_lost
        self._lock = threading.Condition()
        self._worker: FrameChannel[WorkerToBridge] | None = None
        self._closed = False
        self._node = _connect()
        self._slot, self._board = self._attach(name)
        self._board.set(self._slot, Word.CAP, cap)
        threading.Thread(target=self._watch_node, name="node", daemon=True).start()

    def _attach(self, name: InstanceName) -> tuple[int, Board]:
        self._node.sock.settimeout(ATTACH_TIMEOUT_S)
        try:
            self._node.send(AttachInstance(name.model, name.group, os.getpid(), self.cap))
            message, fds = self._node.receive()
        except (PeerLost, TimeoutError) as exc:
            raise AttachFailed(f"the node gave no worker within {ATTACH_TIMEOUT_S:.0f} s: {exc}") from exc
        self._node.sock.settimeout(None)
        if isinstance(message, AttachRefused):
            close_fds(fds)
            raise AttachFailed(f"the node refused instance {name.group} of {name.model}: {message.reason}")
        if not isinstance(message, Attached):
            close_fds(fds)
            raise AttachFailed(f"the node answered {type(message).__name__}, expected Attached")
        board_fd, worker_fd = fds
        board = Board(board_fd)
        os.close(board_fd)
        self._use_worker(worker_fd)
        return message.slot, board

    # --- the worker ---

    def send(self, message: BridgeToWorker) -> None:
        """Send to the worker, waiting for the next one if it has just died. Raises WorkerUnavailable."""
        with self._lock:
            self._lock.wait_for(lambda: self._worker is not None or self._closed, REPLACEMENT_TIMEOUT_S)
            worker = self._worker
            if worker is None:
                raise WorkerUnavailable(
                    f"this instance has no worker, and none came within {REPLACEMENT_TIMEOUT_S:.0f} s"
                )
            try:
                worker.send(message)
            except PeerLost:
                raise WorkerUnavailable("the worker of this instance has just died; try again") from None

    def _use_worker(self, fd: int) -> None:
        channel: FrameChannel[WorkerToBridge] = FrameChannel(socket.socket(fileno=fd), WorkerToBridge)
        with self._lock:
            self._worker = channel
            self._lock.notify_all()
        self._reader = threading.Thread(target=self._read_worker, args=(channel,), name="worker", daemon=True)
        self._reader.start()

    def _read_worker(self, channel: FrameChannel[WorkerToBridge]) -> None:
        try:
            while True:
                self._on_messages(channel.receive())
        except (PeerLost, OSError):
            pass
        with self._lock:
            if self._worker is channel:
                self._worker = None
        self._on_worker_lost()
        channel.close()

    def _watch_node(self) -> None:
        try:
            while True:
                message, fds = self._node.receive()
                if isinstance(message, WorkerReplaced):
                    # First the dead worker's requests get their error, then the next one takes new ones.
                    self._reader.join()
                    self._use_worker(fds[0])
                else:
                    close_fds(fds)
        except (PeerLost, OSError) as exc:
            if not self._closed:
                # Without the node there are no leases and no next worker; what runs may finish.
                log.error("the node daemon is gone: %s", exc)

    # --- the board ---

    def publish(self, in_flight: int, landed: int) -> None:
        self._board.set(self._slot, Word.IN_FLIGHT, in_flight)
        self._board.set(self._slot, Word.LANDED, landed)

    def state(self) -> SlotState:
        return SlotState(self._board.get(self._slot, Word.STATE))

    def least_loaded_sibling(self) -> int | None:
        return self._board.least_loaded_sibling(self._slot)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            worker, self._worker = self._worker, None
            self._lock.notify_all()
        for channel in (worker, self._node):
            if channel is not None:
                channel.sock.shutdown(socket.SHUT_RDWR)


def _connect() -> PacketChannel[NodeToBridge]:
    path = os.environ.get(NODE_SOCKET_VARIABLE)
    if not path:
        raise AttachFailed(f"{NODE_SOCKET_VARIABLE} is not set: Triton was not started by `tidegate up`")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.connect(path)
    except OSError as exc:
        sock.close()
        raise AttachFailed(f"no node daemon listens on {path}: {exc.strerror}") from exc
    return PacketChannel(sock, NodeToBridge)
