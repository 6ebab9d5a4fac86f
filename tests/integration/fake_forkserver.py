"""A fork server without torch: it speaks the node's protocol and forks workers that answer at once.

Run by tests/integration/test_node_*.py in place of python_backend.worker.forkserver. Environment:
FAKE_BLOCK_BYTES, FAKE_BIND_S, FAKE_WARM_UP_S, FAKE_DIE_WARMING (workers die before they are warm),
FAKE_REFUSE_BIND, FAKE_DEAF_WORKERS (they get warm, then never read), FAKE_IGNORE_STOP.

A worker answers EmbedBatch with vectors made of [slot, pid]; for a model with a KV cache it leases
`len(texts[0])` blocks first and fills them with its pid's low byte. The text "release" gives them back,
"release-wrong" gives back what it does not hold, "die" ends it with status 3.
"""

from __future__ import annotations

import argparse
import array
import ctypes
import mmap
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path

import msgspec

from python_backend.board import Board, Word
from python_backend.channel import FrameChannel, PacketChannel, PeerLost, close_fds
from python_backend.messages import (
    AttachWorker,
    BindFailed,
    BindModel,
    BridgeToWorker,
    EmbedBatch,
    EmbedResult,
    ExtentLeased,
    ForkServerReady,
    LeaseBlocks,
    ModelBound,
    ModelUnbound,
    NodeToForkServer,
    NodeToWorker,
    PoolExhausted,
    ReleaseExtent,
    SpawnWorker,
    StopWorker,
    TensorSpec,
    UnbindModel,
    WorkerExited,
    WorkerReady,
    WorkerSpawned,
)

BLOCK_BYTES = int(os.environ.get("FAKE_BLOCK_BYTES", "8192"))
PR_SET_PDEATHSIG = 1


def serve(node: PacketChannel[NodeToForkServer]) -> None:
    wake_read, wake_write = socket.socketpair()
    wake_write.setblocking(False)
    signal.set_wakeup_fd(wake_write.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    kinds: dict[str, str] = {}
    node.send(ForkServerReady(os.getpid()))
    while True:
        ready, _, _ = select.select([node, wake_read], [], [])
        if wake_read in ready:
            wake_read.recv(4096)
            reap(node)
        if node in ready:
            message, fds = node.receive()
            if isinstance(message, BindModel):
                kinds[message.model] = message.kind
                node.send(bind(message, fds))
            elif isinstance(message, UnbindModel):
                node.send(ModelUnbound(message.model))
            else:
                spawn(node, message, fds, kinds[message.model])
            close_fds(fds)


def bind(message: BindModel, fds: list[int]) -> ModelBound | BindFailed:
    time.sleep(float(os.environ.get("FAKE_BIND_S", "0")))
    if os.environ.get("FAKE_REFUSE_BIND"):
        return BindFailed(message.model, "RuntimeError: this model has three heads")
    table = msgspec.json.decode(Path(message.table_path).read_bytes(), type=dict[str, TensorSpec])
    with mmap.mmap(fds[0], message.weights_bytes, mmap.MAP_SHARED, mmap.PROT_READ) as weights:
        for name, spec in table.items():
            if spec.offset_bytes >= len(weights):
                return BindFailed(message.model, f"{name} lies outside the weights")
    block_bytes = BLOCK_BYTES if message.kind == "generate" else 0
    return ModelBound(message.model, block_bytes, 16 if block_bytes else 0, 2048)


def spawn(node: PacketChannel[NodeToForkServer], message: SpawnWorker, fds: list[int], kind: str) -> None:
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            signal.set_wakeup_fd(-1)
            node.close()
            status = work(PacketChannel(socket.socket(fileno=fds[0]), NodeToWorker), fds[1:], message, kind)
        except PeerLost:
            status = 0
        finally:
            os._exit(status)
    node.send(WorkerSpawned(message.worker_id, pid))


def reap(node: PacketChannel[NodeToForkServer]) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        node.send(WorkerExited(pid, os.waitstatus_to_exitcode(status)))


def work(control: PacketChannel[NodeToWorker], kv_fds: list[int], spawned: SpawnWorker, kind: str) -> int:
    control.sock.setblocking(True)
    time.sleep(float(os.environ.get("FAKE_WARM_UP_S", "0")))
    if os.environ.get("FAKE_DIE_WARMING"):
        return 7
    kv = mmap.mmap(kv_fds[0], spawned.kv_total_bytes) if kind == "generate" else None
    control.send(WorkerReady(os.getpid()))
    if os.environ.get("FAKE_DEAF_WORKERS"):
        signal.pause()
    message, fds = control.receive()
    if not isinstance(message, AttachWorker):
        return 0
    board, bridge = Board(fds[0]), FrameChannel[BridgeToWorker](socket.socket(fileno=fds[1]), BridgeToWorker)
    leased: list[ExtentLeased] = []
    while True:
        ready, _, _ = select.select([control, bridge], [], [])
        if control in ready:
            news, _ = control.receive()
            if isinstance(news, StopWorker) and not os.environ.get("FAKE_IGNORE_STOP"):
                return 0
        if bridge in ready:
            for batch in bridge.receive():
                assert isinstance(batch, EmbedBatch)
                board.set(message.slot, Word.TOKENS_OUT, 7)
                if batch.texts[0] == "die":
                    return 3
                bridge.send(answer(batch, message.slot, control, kv, leased))


def answer(
    batch: EmbedBatch,
    slot: int,
    control: PacketChannel[NodeToWorker],
    kv: mmap.mmap | None,
    leased: list[ExtentLeased],
) -> EmbedResult:
    error = ""
    if batch.texts[0] == "release":
        for extent in leased:
            control.send(ReleaseExtent(extent.first_block, extent.num_blocks))
        leased.clear()
    elif batch.texts[0] == "release-wrong":
        control.send(ReleaseExtent(leased[0].first_block, leased[0].num_blocks + 1))
    elif kv is not None:
        control.send(LeaseBlocks(len(batch.texts[0])))
        reply, _ = control.receive()
        if isinstance(reply, ExtentLeased):
            start, size = reply.first_block * BLOCK_BYTES, reply.num_blocks * BLOCK_BYTES
            kv[start : start + size] = bytes([os.getpid() % 256]) * size
            leased.append(reply)
        elif isinstance(reply, PoolExhausted):
            error = f"exhausted, largest {reply.largest_free_blocks}"
    return EmbedResult(batch.batch_id, 2, array.array("f", [slot, os.getpid()]).tobytes(), [1], error=error)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    node: PacketChannel[NodeToForkServer] = PacketChannel(
        socket.socket(fileno=parser.parse_args().fd), NodeToForkServer
    )
    try:
        serve(node)
    except PeerLost:
        sys.exit(0)


if __name__ == "__main__":
    main()
