"""A node daemon's control service over real books, without workers: tests lease and release as a script says."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from contracts import node_pb2, node_pb2_grpc
from python_backend.node.memory_watch import sample_of
from python_backend.node.pool import Pool
from python_backend.node.quota import ModelQuota

MODEL = "chat"
BLOCK_BYTES = 1000
NUM_BLOCKS = 100


class FakeNode(node_pb2_grpc.NodeServicer):
    """One model with 100 blocks. The books are not made for threads, so a lock stands around them."""

    def __init__(self) -> None:
        self._pool = Pool(NUM_BLOCKS * BLOCK_BYTES)
        self._pool.add_model(MODEL, BLOCK_BYTES, ModelQuota())
        self._lock = threading.Lock()

    def lease(self, num_blocks: int) -> None:
        with self._lock:
            assert isinstance(self._pool.lease(1, MODEL, "", num_blocks), int)

    def release_all(self) -> None:
        with self._lock:
            self._pool.forget(1)

    def WatchMemory(self, request: Any, context: Any) -> Iterator[node_pb2.MemorySample]:
        with self._lock:
            mark = self._pool.watch_high_water()
        while context.is_active():
            with self._lock:
                sample = sample_of(self._pool, mark, [MODEL], [], time.monotonic())
            yield sample
            time.sleep(request.period_ms / 1000)


@contextlib.contextmanager
def fake_node(folder: Path) -> Iterator[tuple[FakeNode, Path]]:
    """The node and its socket."""
    node, socket = FakeNode(), folder / "control.sock"
    server = grpc.server(ThreadPoolExecutor(4))
    node_pb2_grpc.add_NodeServicer_to_server(node, server)  # type: ignore[no-untyped-call]
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    try:
        yield node, socket
    finally:
        server.stop(0.1).wait()
