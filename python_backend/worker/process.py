"""A worker's life: warm up as a spare, attach to one instance, serve it, exit when it is gone.

Thin: reads two sockets, calls the engine or the encoder, writes answers and counters. The process ends by
`WorkerExit` on every way out; the node sees the closed sockets and takes the leases back.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import time
from dataclasses import dataclass
from typing import Any

import torch

from python_backend.board import Board, Word
from python_backend.channel import FrameChannel, PacketChannel, PeerLost, close_fds
from python_backend.messages import (
    AttachWorker,
    BridgeToWorker,
    CancelGenerate,
    Delta,
    EmbedBatch,
    EmbedResult,
    Generate,
    NodeToWorker,
    StepOutput,
    StopWorker,
    WorkerReady,
)
from python_backend.worker.encoder import EncoderRunner
from python_backend.worker.engine import Engine
from python_backend.worker.errors import RequestRefused
from python_backend.worker.lessor import NodeLessor
from python_backend.worker.threads import ThreadBudget

log = logging.getLogger(__name__)

TRIM_AFTER_IDLE_S = 0.5
"""Idle this long, the worker gives its unused extents back."""
STUCK_PAUSE_S = 0.02
"""No sequence can run because the pool is out: look again after this."""


class WorkerExit(Exception):
    """The worker has nothing more to do; the text says why."""


@dataclass(frozen=True)
class Attachment:
    """One instance, from the worker's side."""

    instance: str
    slot: int
    board: Board
    bridge: FrameChannel[BridgeToWorker]


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


class _Loop:
    """What both kinds of worker share: waiting on two sockets, the thread budget, the board."""

    def __init__(
        self, attachment: Attachment, control: PacketChannel[NodeToWorker], lessor: NodeLessor | None = None
    ) -> None:
        self.attachment = attachment
        self._control = control
        self._lessor = lessor
        self._budget = ThreadBudget(attachment.board.num_cpus)
        self._poll = select.poll()
        self._poll.register(attachment.bridge, select.POLLIN)
        self._poll.register(control, select.POLLIN)

    def receive(self, timeout_s: float | None) -> list[BridgeToWorker]:
        """Messages from the bridge; waits for one at most `timeout_s` (None: for ever). Raises WorkerExit."""
        ready = {fd for fd, _ in self._poll.poll(None if timeout_s is None else timeout_s * 1000)}
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
        close_fds(fds)
        if isinstance(message, StopWorker):
            raise WorkerExit("stopped by the node")

    def _read_unread(self, lessor: NodeLessor) -> None:
        while lessor.unread:
            message, fds = lessor.unread.popleft()
            close_fds(fds)
            if isinstance(message, StopWorker):
                raise WorkerExit("stopped by the node")

    def apply_thread_budget(self) -> None:
        """Before each step: OpenMP with more threads than cores halves everybody's speed."""
        threads = self._budget.update(self.attachment.board.num_busy(), time.monotonic())
        if threads != torch.get_num_threads():
            torch.set_num_threads(threads)

    def send(self, message: StepOutput | EmbedResult) -> None:
        try:
            self.attachment.bridge.send(message)
        except PeerLost:
            raise WorkerExit("the instance is gone") from None

    def publish(self, **words: int) -> None:
        for name, value in words.items():
            self.attachment.board.set(self.attachment.slot, Word[name.upper()], value)


def serve_generate(
    engine: Engine, attachment: Attachment, control: PacketChannel[NodeToWorker], lessor: NodeLessor
) -> None:
    """Run the engine for one instance until it goes. Raises WorkerExit."""
    loop = _Loop(attachment, control, lessor)
    idle_since_s: float | None = time.monotonic()
    while True:
        messages = loop.receive(_generate_timeout(engine, idle_since_s))
        deltas = [delta for message in messages for delta in _accept(engine, message)]
        if engine.has_work:
            idle_since_s = None
            loop.apply_thread_budget()
            steps_before = engine.num_steps
            deltas += engine.step(time.time())
            if engine.num_steps == steps_before and engine.has_work:
                time.sleep(STUCK_PAUSE_S)
        elif idle_since_s is None:
            idle_since_s = time.monotonic()
        elif engine.num_leased_blocks and time.monotonic() - idle_since_s >= TRIM_AFTER_IDLE_S:
            engine.trim()
        if deltas:
            loop.send(StepOutput(deltas))
        loop.publish(**engine.counters())


def _generate_timeout(engine: Engine, idle_since_s: float | None) -> float | None:
    if engine.has_work or idle_since_s is None:
        return 0.0
    if not engine.num_leased_blocks:
        return None
    return max(0.0, idle_since_s + TRIM_AFTER_IDLE_S - time.monotonic())


def _accept(engine: Engine, message: BridgeToWorker) -> list[Delta]:
    """Put a message into the engine; the last delta at once if it is refused or cancelled."""
    if isinstance(message, CancelGenerate):
        ended = engine.cancel(message.request_id)
        return [ended] if ended else []
    if not isinstance(message, Generate):
        log.error("a generate worker was sent %s", type(message).__name__)
        return []
    try:
        engine.add(message.request_id, message.prompt, message.sampling, message.deadline_unix_s)
    except RequestRefused as exc:
        return [Delta(message.request_id, "", 0, error_code=exc.code, error=str(exc))]
    return []


def serve_embed(runner: EncoderRunner, attachment: Attachment, control: PacketChannel[NodeToWorker]) -> None:
    """Embed batches for one instance until it goes. Raises WorkerExit."""
    loop = _Loop(attachment, control)
    while True:
        for message in loop.receive(None):
            if not isinstance(message, EmbedBatch):
                log.error("an embed worker was sent %s", type(message).__name__)
                continue
            loop.publish(running=len(message.texts))
            loop.apply_thread_budget()
            loop.send(_embed(runner, message))
            loop.publish(running=0)


def _embed(runner: EncoderRunner, batch: EmbedBatch) -> EmbedResult:
    try:
        vectors, num_tokens, errors = runner.embed(batch.texts)
    except Exception as exc:  # one bad batch must not end the worker; its requests get the reason
        log.exception("embedding a batch of %d texts failed", len(batch.texts))
        return EmbedResult(batch.batch_id, runner.dim, b"", [], error_code="INTERNAL", error=_one_line(exc))
    return EmbedResult(batch.batch_id, runner.dim, vectors.numpy().tobytes(), num_tokens, errors)


def _one_line(exc: BaseException) -> str:
    words: Any = str(exc).split()
    return f"{type(exc).__name__}: {' '.join(words)}"[:300]
