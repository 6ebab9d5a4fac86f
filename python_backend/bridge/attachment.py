"""The instance's tie to the node: attach, get a worker, get the next one when it dies, join the next node.

The connection is the instance's lease: when this process goes, the node sees it close. When the node goes, its
workers go with it, and the launcher starts the next one; until that one has a worker for this instance, requests
fail at once.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from python_backend.board import Board, Slot, SlotState, Word
from python_backend.bridge.errors import AttachFailed, WorkerUnavailable
from python_backend.channel import FrameChannel, PacketChannel, PeerLost, ProtocolError, close_fds
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
"""How long after a worker's death requests wait for the next one; later ones fail at once until it is there."""
FIRST_REJOIN_S = 0.05
MAX_REJOIN_S = 0.5
"""Between two tries to reach the next node: first, and doubled up to this."""

CLOSE_TIMEOUT_S = 1.0
"""For each of our threads, which the closed sockets wake."""

WORKER_DIED = "the worker of this instance died; the next one takes new requests"
NODE_DIED = "the node daemon died, and the worker of this instance with it; the node is starting again"
OUTAGE = "the node is starting again; try again in a few seconds"


@dataclass(frozen=True)
class InstanceName:
    """Triton's name of a model instance: group "chat-0", number 0."""

    model: str
    group: str

    @classmethod
    def of(cls, args: dict[str, str]) -> InstanceName:
        return cls(args["model_name"], args["model_instance_name"].rpartition("_")[0])


@dataclass(frozen=True)
class _Seat:
    """This instance's place on the board of the node that it is attached to."""

    board: Board
    slot: int
    landed_before: int
    """Requests that landed under earlier nodes: on a new board the count begins at 0 again."""


class Attachment:
    """One instance attached to the node.

    `on_messages` is called on the receiver thread with what the worker sent; `on_worker_lost` on the same
    thread when it died, before the next one is used; `why_lost` says how.
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
        self.why_lost = WORKER_DIED
        self._name = name
        self._on_messages = on_messages
        self._on_worker_lost = on_worker_lost
        self._lock = threading.Condition()
        self._worker: FrameChannel[WorkerToBridge] | None = None
        self._worker_due_s = 0.0
        self._outage = ""
        self._closing = threading.Event()
        self._seat_lock = threading.Lock()
        self._in_flight = self._landed = 0
        self._join(ATTACH_TIMEOUT_S)
        self._node_watcher = threading.Thread(target=self._watch_node, name="node", daemon=True)
        self._node_watcher.start()

    # --- the node ---

    def _join(self, timeout_s: float | None) -> None:
        """Attach to the node that listens now, and take what it gives. Raises AttachFailed."""
        node = _connect()
        with self._lock:
            self._node = node
            if self._closing.is_set():
                node.sock.shutdown(socket.SHUT_RDWR)
        try:
            slot, board_fd, worker_fd = self._attach(node, timeout_s)
        except AttachFailed:
            node.close()
            raise
        self._sit_down(Board(board_fd), slot)
        os.close(board_fd)
        self._use_worker(worker_fd)

    def _attach(self, node: PacketChannel[NodeToBridge], timeout_s: float | None) -> tuple[int, int, int]:
        """Slot, and the descriptors of the board and of the worker channel."""
        name = self._name
        node.sock.settimeout(timeout_s)
        try:
            node.send(AttachInstance(name.model, name.group, os.getpid(), self.cap))
            message, fds = node.receive()
        except TimeoutError as exc:
            raise AttachFailed(f"the node gave no worker within {timeout_s:.0f} s") from exc
        except (PeerLost, ProtocolError, OSError) as exc:
            raise AttachFailed(f"the node gave no worker: {exc}") from exc
        node.sock.settimeout(None)
        if isinstance(message, Attached) and len(fds) == 2:
            return message.slot, fds[0], fds[1]
        close_fds(fds)
        if isinstance(message, AttachRefused):
            raise AttachFailed(f"the node refused instance {name.group} of {name.model}: {message.reason}")
        raise AttachFailed(f"the node answered {type(message).__name__}, expected Attached")

    def _watch_node(self) -> None:
        while not self._closing.is_set():
            try:
                self._follow_node()
            except (PeerLost, ProtocolError, OSError) as exc:
                if not self._closing.is_set():
                    log.error("lost the node daemon: %s", exc)
                    self._leave_node()
                    self._rejoin()
        self._node.close()

    def _follow_node(self) -> None:
        """Returns never."""
        while True:
            message, fds = self._node.receive()
            if isinstance(message, WorkerReplaced):
                # First the dead worker's requests get their error, then the next one takes new ones.
                self._reader.join()
                self._use_worker(fds[0])
            else:
                close_fds(fds)

    def _leave_node(self) -> None:
        """On return the requests of its worker have had their error, and new ones fail at once."""
        with self._lock:
            self._outage, worker = OUTAGE, self._worker
            self._lock.notify_all()
        if worker is not None:
            # Without a lease it must not go on, should it have outlived the node.
            with contextlib.suppress(OSError):
                worker.sock.shutdown(socket.SHUT_RDWR)
        self._reader.join()
        self._node.close()

    def _rejoin(self) -> None:
        """Attach to the next node, however long it takes to come. It answers when it has a worker, and its death
        closes the connection: no time-out is needed."""
        pause_s = FIRST_REJOIN_S
        while not self._closing.wait(pause_s):
            try:
                self._join(None)
            except AttachFailed as exc:
                self._outage = f"{OUTAGE} ({exc})"
                pause_s = min(MAX_REJOIN_S, 2 * pause_s)
                continue
            with self._lock:
                self._outage = ""
                self._lock.notify_all()
            log.info("attached to the node again, slot %d", self._seat.slot)
            return

    def _is_node_gone(self) -> bool:
        """Its socket closes before its workers are killed."""
        try:
            return not self._node.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    # --- the worker ---

    def send(self, message: BridgeToWorker) -> None:
        """Send to the worker, waiting for the next one if it has just died. Raises WorkerUnavailable."""
        with self._lock:
            self._lock.wait_for(
                lambda: self._worker is not None or self._outage or self._closing.is_set(),
                max(0.0, self._worker_due_s - time.monotonic()),
            )
            worker = self._worker
            if self._outage:
                raise WorkerUnavailable(self._outage)
            if worker is None:
                raise WorkerUnavailable(
                    f"this instance has no worker, and none came within {REPLACEMENT_TIMEOUT_S:.0f} s"
                )
            try:
                worker.send(message)
            except (PeerLost, OSError):
                raise WorkerUnavailable("the worker of this instance has just died; try again") from None

    def _use_worker(self, fd: int) -> None:
        channel: FrameChannel[WorkerToBridge] = FrameChannel(socket.socket(fileno=fd), WorkerToBridge)
        self._reader = threading.Thread(target=self._read_worker, args=(channel,), name="worker", daemon=True)
        with self._lock:
            self._worker = channel
            self._lock.notify_all()
        self._reader.start()

    def _read_worker(self, channel: FrameChannel[WorkerToBridge]) -> None:
        try:
            while True:
                self._on_messages(channel.receive())
        except (PeerLost, ProtocolError, OSError):
            pass
        with self._lock:
            self.why_lost = NODE_DIED if self._is_node_gone() else WORKER_DIED
            self._worker = None
            self._worker_due_s = time.monotonic() + REPLACEMENT_TIMEOUT_S
        self._on_worker_lost()
        channel.close()

    # --- the board ---

    def _sit_down(self, board: Board, slot: int) -> None:
        with self._seat_lock:
            board.set(slot, Word.CAP, self.cap)
            board.set(slot, Word.IN_FLIGHT, self._in_flight)
            # The board before is not closed: other threads may be reading it.
            self._seat = _Seat(board, slot, self._landed)

    def publish(self, in_flight: int, landed: int) -> None:
        with self._seat_lock:
            self._in_flight, self._landed = in_flight, landed
            seat = self._seat
            seat.board.set(seat.slot, Word.IN_FLIGHT, in_flight)
            seat.board.set(seat.slot, Word.LANDED, landed - seat.landed_before)

    def state(self) -> SlotState:
        seat = self._seat
        return SlotState(seat.board.get(seat.slot, Word.STATE))

    def read_slot(self) -> Slot:
        seat = self._seat
        return seat.board.read(seat.slot)

    def least_loaded_sibling(self) -> int | None:
        seat = self._seat
        return seat.board.least_loaded_sibling(seat.slot)

    def close(self) -> None:
        self._closing.set()
        with self._lock:
            worker, self._worker = self._worker, None
            self._lock.notify_all()
        for channel in (worker, self._node):
            if channel is not None:
                with contextlib.suppress(OSError):
                    channel.sock.shutdown(socket.SHUT_RDWR)
        for thread in (self._node_watcher, self._reader):
            thread.join(CLOSE_TIMEOUT_S)


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
