"""The fork server: torch and the models' skeletons loaded once, workers forked from it in about 20 ms.

`python -m python_backend.worker.forkserver --fd N`, started by the node (exec, never fork). It stays
single-threaded in torch: a parent that has run OpenMP makes its children hang. It never initialises CUDA.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import logging
import os
import select
import signal
import socket
import sys
import traceback
from typing import NoReturn

# Before torch: idle OpenMP threads of one worker must not spin on cores that another needs.
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# `torch.cuda.is_available()`, which libraries ask, must not initialise CUDA here: no child could use it then.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

import torch

from contracts import logs
from python_backend.channel import PacketChannel, PeerLost, close_fds
from python_backend.messages import (
    BindFailed,
    BindModel,
    ForkServerReady,
    ForkServerToNode,
    ModelBound,
    ModelUnbound,
    NodeToForkServer,
    NodeToWorker,
    SpawnWorker,
    UnbindModel,
    WorkerExited,
    WorkerSpawned,
)
from python_backend.worker.process import WorkerExit
from python_backend.worker.roles import Role, bind_role

log = logging.getLogger("forkserver")

PR_SET_PDEATHSIG = 1


class ForkServer:
    def __init__(self, node: PacketChannel[NodeToForkServer]) -> None:
        self._node = node
        self._models: dict[str, Role] = {}

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
        answer: ModelBound | BindFailed | None = None
        try:
            if isinstance(message, BindModel):
                answer = self._bind(message, fds[0])
            elif isinstance(message, UnbindModel):
                self._unbind(message.model)
            else:
                self._spawn(message, fds, wakers)
        finally:
            close_fds(fds)
        if answer is not None:
            self._say(answer)
        return True

    def _bind(self, bind: BindModel, weights_fd: int) -> ModelBound | BindFailed:
        """The answer, for when the descriptors are closed: refused weights are then held by nobody here."""
        failure = ""
        try:
            role = bind_role(bind, weights_fd)
        except Exception as exc:  # any folder of a user's may be broken in any way; the node must hear of it
            log.exception("binding %s failed", bind.model)
            failure = f"{type(exc).__name__}: {exc}"[:2000]
        if failure:
            # Only now are the exception's frames gone; in cycles with them lies what maps the weights.
            gc.collect()
            return BindFailed(bind.model, failure)
        self._models[bind.model] = role
        # What lives now lives for ever: keep the collector from touching (and so copying) its pages in children.
        gc.collect()
        gc.freeze()
        return ModelBound(bind.model, role.block_bytes, role.block_tokens, role.max_context_tokens)

    def _unbind(self, model: str) -> None:
        self._models.pop(model, None)
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self._say(ModelUnbound(model))

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


def _worker_main(role: Role, spawn: SpawnWorker, fds: list[int], parent_pid: int) -> NoReturn:
    """The child after the fork; leaves by os._exit, so that nothing of the parent's is run down here."""
    status = 1
    try:
        _die_with(parent_pid)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        torch.seed()
        control: PacketChannel[NodeToWorker] = PacketChannel(socket.socket(fileno=fds[0]), NodeToWorker)
        control.sock.setblocking(True)
        role.run(spawn, control, fds[1:])
    except WorkerExit as exc:
        log.info("worker %d of %s: %s", spawn.worker_id, role.bind.model, exc)
        status = 0
    except PeerLost:
        log.info("worker %d of %s: the node is gone", spawn.worker_id, role.bind.model)
        status = 0
    except TimeoutError as exc:
        log.error("worker %d of %s: the node does not answer: %s", spawn.worker_id, role.bind.model, exc)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _die_with(parent_pid: int) -> None:
    """Get SIGKILL when the fork server ends, however it ends."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        raise WorkerExit("the fork server is gone")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fd", type=int, required=True, help="inherited SOCK_SEQPACKET socket to the node")
    args = parser.parse_args()
    logs.configure("tidegate-worker", "%(asctime)s %(name)s %(levelname)s %(message)s")
    # The node stops this process by closing the socket; a Ctrl-C in the terminal is the launcher's to handle.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    ForkServer(PacketChannel(socket.socket(fileno=args.fd), NodeToForkServer)).run()


if __name__ == "__main__":
    main()
