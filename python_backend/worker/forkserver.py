"""The fork server: torch and the models' skeletons loaded once, workers forked from it in about 20 ms.

`python -m python_backend.worker.forkserver --fd N`, started by the node (exec, never fork). It stays
single-threaded in torch: a parent that has run OpenMP makes its children hang. It never initialises CUDA.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import logging
import mmap
import os
import select
import signal
import socket
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

# Before torch: idle OpenMP threads of one worker must not spin on cores that another needs.
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import tokenizers
import torch
from transformers import PreTrainedModel

from python_backend.channel import PacketChannel, PeerLost, close_fds
from python_backend.messages import (
    BindFailed,
    BindModel,
    ForkServerReady,
    ForkServerToNode,
    ModelBound,
    NodeToForkServer,
    NodeToWorker,
    SpawnWorker,
    WorkerExited,
    WorkerSpawned,
)
from python_backend.worker import skeleton
from python_backend.worker.blocks import BlockPool
from python_backend.worker.decoder import DecoderRunner, KVLayout, view_arena
from python_backend.worker.encoder import EncoderRunner
from python_backend.worker.engine import Engine, EngineConfig
from python_backend.worker.lessor import NodeLessor
from python_backend.worker.process import WorkerExit, serve_embed, serve_generate, wait_for_attachment

log = logging.getLogger("forkserver")

PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class BoundModel:
    """A skeleton that workers inherit."""

    bind: BindModel
    model: PreTrainedModel
    tokenizer: tokenizers.Tokenizer
    max_context_tokens: int
    layout: KVLayout | None


class ForkServer:
    def __init__(self, node: PacketChannel[NodeToForkServer]) -> None:
        self._node = node
        self._models: dict[str, BoundModel] = {}

    def run(self) -> None:
        """Serve the node until it closes the connection."""
        # SIGCHLD wakes the receive: children are reaped where they are reported.
        wake_read, wake_write = socket.socketpair()
        wake_write.setblocking(False)
        signal.set_wakeup_fd(wake_write.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        poll = select.poll()
        poll.register(self._node, select.POLLIN)
        poll.register(wake_read, select.POLLIN)
        self._say(ForkServerReady(os.getpid()))
        while True:
            ready = {fd for fd, _ in poll.poll()}
            if wake_read.fileno() in ready:
                wake_read.recv(4096)
            self._reap()
            if self._node.fileno() in ready and not self._serve_one((wake_read, wake_write)):
                return

    def _serve_one(self, wakers: tuple[socket.socket, socket.socket]) -> bool:
        try:
            message, fds = self._node.receive()
        except PeerLost:
            return False
        try:
            if isinstance(message, BindModel):
                self._bind(message, fds[0])
            else:
                self._spawn(message, fds, wakers)
        finally:
            close_fds(fds)
        return True

    def _bind(self, bind: BindModel, weights_fd: int) -> None:
        try:
            bound = _bind(bind, weights_fd)
        except Exception as exc:  # any folder of a user's may be broken in any way; the node must hear of it
            log.exception("binding %s failed", bind.model)
            self._say(BindFailed(bind.model, f"{type(exc).__name__}: {exc}"[:2000]))
            return
        self._models[bind.model] = bound
        # What lives now lives for ever: keep the collector from touching (and so copying) its pages in children.
        gc.collect()
        gc.freeze()
        layout = bound.layout
        self._say(
            ModelBound(
                bind.model,
                layout.block_bytes if layout else 0,
                layout.block_tokens if layout else 0,
                bound.max_context_tokens,
            )
        )

    def _spawn(self, spawn: SpawnWorker, fds: list[int], wakers: tuple[socket.socket, socket.socket]) -> None:
        parent_pid = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._node.close()
            signal.set_wakeup_fd(-1)
            for waker in wakers:
                waker.close()
            _worker_main(self._models[spawn.model], spawn, fds, parent_pid)
        self._say(WorkerSpawned(spawn.worker_id, pid))

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._say(WorkerExited(pid, os.waitstatus_to_exitcode(status)))

    def _say(self, message: ForkServerToNode) -> None:
        try:
            self._node.send(message)
        except PeerLost:
            sys.exit(0)


def _bind(bind: BindModel, weights_fd: int) -> BoundModel:
    model = skeleton.build_skeleton(bind, weights_fd)
    tokenizer = tokenizers.Tokenizer.from_file(str(Path(bind.config_dir) / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return BoundModel(
        bind=bind,
        model=model,
        tokenizer=tokenizer,
        max_context_tokens=skeleton.max_context_tokens(model, bind.max_context_tokens),
        layout=KVLayout.of(model) if bind.kind == "generate" else None,
    )


def _worker_main(bound: BoundModel, spawn: SpawnWorker, fds: list[int], parent_pid: int) -> NoReturn:
    """The child after the fork; leaves by os._exit, so that nothing of the parent's is run down here."""
    status = 1
    try:
        _die_with(parent_pid)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        torch.seed()
        control: PacketChannel[NodeToWorker] = PacketChannel(socket.socket(fileno=fds[0]), NodeToWorker)
        control.sock.setblocking(True)
        if bound.layout is None:
            _run_embed(bound, control)
        else:
            _run_generate(bound, bound.layout, control, fds[1], spawn.kv_total_bytes)
    except WorkerExit as exc:
        log.info("worker %d of %s: %s", spawn.worker_id, bound.bind.model, exc)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _run_generate(
    bound: BoundModel, layout: KVLayout, control: PacketChannel[NodeToWorker], kv_fd: int, kv_bytes: int
) -> None:
    arena = view_arena(_map_kv(kv_fd, kv_bytes), layout)
    runner = DecoderRunner(bound.model, arena)
    runner.warm_up(layout)
    attachment = wait_for_attachment(control)
    lessor = NodeLessor(control)
    config = EngineConfig(
        eos_token_ids=skeleton.eos_token_ids(bound.bind.config_dir),
        max_context_tokens=bound.max_context_tokens,
        total_blocks=arena.shape[0] // layout.block_tokens,
    )
    engine = Engine(config, bound.tokenizer, runner, BlockPool(lessor, layout.block_tokens))
    serve_generate(engine, attachment, control, lessor)


def _run_embed(bound: BoundModel, control: PacketChannel[NodeToWorker]) -> None:
    runner = EncoderRunner(bound.model, bound.tokenizer, bound.max_context_tokens)
    runner.warm_up()
    serve_embed(runner, wait_for_attachment(control), control)


def _map_kv(fd: int, nbytes: int) -> torch.Tensor:
    mapped = mmap.mmap(fd, nbytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    return torch.frombuffer(mapped, dtype=torch.uint8)


def _die_with(parent_pid: int) -> None:
    """Get SIGKILL when the fork server ends, however it ends."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        raise WorkerExit("the fork server is gone")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fd", type=int, required=True, help="inherited SOCK_SEQPACKET socket to the node")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    # The node stops this process by closing the socket; a Ctrl-C in the terminal is the launcher's to handle.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    ForkServer(PacketChannel(socket.socket(fileno=args.fd), NodeToForkServer)).run()


if __name__ == "__main__":
    main()
