"""The node's lease desk alone, in a process of its own: what a worker's lease costs without a model.

`python -m benchmarks.lease_server SOCKET STATS TOTAL_BYTES BLOCK_BYTES BLOCK_TOKENS` serves every connection on
SOCKET (SOCK_SEQPACKET) as a worker of model "m", and writes the stats page STATS after each of them has gone. It
ends when its standard input does: with whoever started it, however that ends.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from python_backend.channel import PacketChannel
from python_backend.messages import Message, ModelBound, NodeToWorker, WorkerToNode
from python_backend.node.desk import LeaseDesk
from python_backend.node.instances import WorkerId
from python_backend.node.peers import Listener, Peer
from python_backend.node.pool import Pool
from python_backend.node.pool_status import page_of
from python_backend.node.quota import ModelQuota
from python_backend.node.spares import Worker
from python_backend.stats_page import PoolPage, StatsWriter, read_stats

MODEL = "m"
START_TIMEOUT_S = 30.0


class Server:
    def __init__(self, pool: Pool, bound: ModelBound, stats_path: Path) -> None:
        self._pool = pool
        self._stats = StatsWriter(stats_path)
        self._peers: dict[int, Peer[WorkerToNode]] = {}
        self._ids = itertools.count(1)
        loop = asyncio.get_running_loop()
        self._desk = LeaseDesk(pool, {MODEL: bound}, self._answer, list, loop)
        self._publish()

    def connect(self, sock: socket.socket) -> None:
        worker = Worker(WorkerId(next(self._ids)), MODEL)

        def gone(_: str) -> None:
            self._peers.pop(worker.id).close()
            self._desk.worker_gone(worker)
            self._publish()

        self._peers[worker.id] = Peer(
            sock, WorkerToNode, lambda message: self._desk.serve(worker, message), gone
        )

    def _answer(self, worker: Worker, message: Message) -> None:
        self._peers[worker.id].send(message)

    def _publish(self) -> None:
        self._pool.check()
        self._stats.write(page_of(self._pool, [MODEL], time.time()))


@dataclass(frozen=True)
class RunningServer:
    socket_path: Path
    stats_path: Path
    pid: int

    def connect(self) -> PacketChannel[NodeToWorker]:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.connect(str(self.socket_path))
        return PacketChannel(sock, NodeToWorker)

    def stats(self) -> PoolPage:
        return read_stats(self.stats_path)


@contextmanager
def lease_server(
    folder: Path, total_bytes: int, block_bytes: int, block_tokens: int
) -> Iterator[RunningServer]:
    """Raises TimeoutError when it does not start."""
    socket_path, stats_path = folder / "leases.sock", folder / "leases.stats"
    numbers = map(str, (total_bytes, block_bytes, block_tokens))
    child = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.lease_server", str(socket_path), str(stats_path), *numbers],
        stdin=subprocess.PIPE,
    )
    try:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not socket_path.exists() or not stats_path.exists():
            if child.poll() is not None or time.monotonic() > deadline_s:
                raise TimeoutError(f"the lease server does not start (status {child.poll()})")
            time.sleep(0.01)
        yield RunningServer(socket_path, stats_path, child.pid)
    finally:
        child.communicate()


async def serve(socket_path: Path, stats_path: Path, total_bytes: int, bound: ModelBound) -> None:
    pool = Pool(total_bytes)
    pool.add_model(MODEL, bound.block_bytes, ModelQuota())
    server = Server(pool, bound, stats_path)
    Listener(socket_path, server.connect)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), ended.set)
    await ended.wait()


def main() -> None:
    socket_path, stats_path, total_bytes, block_bytes, block_tokens = sys.argv[1:]
    bound = ModelBound(MODEL, int(block_bytes), int(block_tokens), 8192)
    asyncio.run(serve(Path(socket_path), Path(stats_path), int(total_bytes), bound))


if __name__ == "__main__":
    main()
