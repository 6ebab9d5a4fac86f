"""A worker's life: warm up as a spare, attach to one instance, serve it, exit when it is gone.

What all kinds of workers share: standing by, two sockets, the thread budget, the board. The process ends by
`WorkerExit` on every way out; the node sees the closed sockets and takes the leases back.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from python_backend.board import Board, Word
from python_backend.channel import FrameChannel, PacketChannel, PeerLost, close_fds
from python_backend.messages import (
    AttachWorker,
    BridgeToWorker,
    NodeToWorker,
    ReclaimBlocks,
    StopWorker,
    WorkerReady,
    WorkerToBridge,
)
from python_backend.worker.lessor import NodeLessor
from python_backend.worker.threads import ThreadBudget

IDLE_BEAT_S = 1.0
"""A worker without work gives a sign of life this often: the node tells waiting from hanging by it."""


class WorkerExit(Exception):
    """The worker has nothing more to do; the text says why."""


@dataclass(frozen=True)
class Attachment:
    """One instance, from the worker's side."""

    instance: str
    slot: int
    board: Board
    bridge: FrameChannel[BridgeToWorker]

    def beat(self) -> None:
        """Show the node that this worker makes progress (`node/watch.py`)."""
        self.board.set(self.slot, Word.HEARTBEAT, self.board.get(self.slot, Word.HEARTBEAT) + 1)

    def beat_in(self, model: nn.Module) -> None:
        """Beat before every layer too: one step of a large model may take longer than a hang is given."""
        stacks = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
        for layer in max(stacks, key=len, default=nn.ModuleList()):
            layer.register_forward_pre_hook(lambda *_: self.beat())


def wait_for_attachment(control: PacketChannel[NodeToWorker]) -> Attachment:
    """Stand by as a spare. Raises WorkerExit when the node is gone or wants no more."""
    control.send(WorkerReady(os.getpid()))
    while True:
        try:
            message, fds = control.receive()
        except PeerLost:
            raise WorkerExit("the node is gone") from None
        if isinstance(message, StopWorker):
            raise WorkerExit("stopped as a spare")
        if isinstance(message, AttachWorker):
            board_fd, bridge_fd = fds
            board = Board(board_fd)
            os.close(board_fd)
            bridge: FrameChannel[BridgeToWorker] = FrameChannel(
                socket.socket(fileno=bridge_fd), BridgeToWorker
            )
            return Attachment(message.instance, message.slot, board, bridge)
        close_fds(fds)


class WorkerLoop:
    """What both kinds of worker share: waiting on two sockets, the thread budget, the board."""

    def __init__(
        self, attachment: Attachment, control: PacketChannel[NodeToWorker], lessor: NodeLessor | None = None
    ) -> None:
        self.attachment = attachment
        self._control = control
        self._lessor = lessor
        self._budget = ThreadBudget(attachment.board.num_cpus)
        self.on_reclaim: Callable[[], None] | None = None
        """The node asks for what is leased and unused; called between two steps."""
        self._poll = select.poll()
        self._poll.register(attachment.bridge, select.POLLIN)
        self._poll.register(control, select.POLLIN)

    def receive(self, timeout_s: float | None) -> list[BridgeToWorker]:
        """Messages from the bridge, maybe none; waits for some at most `timeout_s` (None: IDLE_BEAT_S).

        Raises WorkerExit.
        """
        self.attachment.beat()
        wait_s = IDLE_BEAT_S if timeout_s is None else min(timeout_s, IDLE_BEAT_S)
        ready = {fd for fd, _ in self._poll.poll(wait_s * 1000)}
        if self._control.fileno() in ready:
            self._read_control()
        if self._lessor is not None:
            self._read_unread(self._lessor)
        if self.attachment.bridge.fileno() not in ready:
            return []
        try:
            return self.attachment.bridge.receive()
        except PeerLost:
            raise WorkerExit("the instance is gone") from None

    def _read_control(self) -> None:
        try:
            message, fds = self._control.receive()
        except PeerLost:
            raise WorkerExit("the node is gone") from None
        self._obey(message, fds)

    def _read_unread(self, lessor: NodeLessor) -> None:
        while lessor.unread:
            self._obey(*lessor.unread.popleft())

    def _obey(self, message: NodeToWorker, fds: list[int]) -> None:
        close_fds(fds)
        if isinstance(message, StopWorker):
            raise WorkerExit("stopped by the node")
        if isinstance(message, ReclaimBlocks) and self.on_reclaim is not None:
            self.on_reclaim()

    def apply_thread_budget(self) -> None:
        """Before each step: OpenMP with more threads than cores halves everybody's speed."""
        threads = self._budget.update(self.attachment.board.num_busy(), time.monotonic())
        if threads != torch.get_num_threads():
            torch.set_num_threads(threads)

    def send(self, message: WorkerToBridge) -> None:
        try:
            self.attachment.bridge.send(message)
        except PeerLost:
            raise WorkerExit("the instance is gone") from None

    def publish(self, **words: int) -> None:
        for name, value in words.items():
            self.attachment.board.set(self.attachment.slot, Word[name.upper()], value)
