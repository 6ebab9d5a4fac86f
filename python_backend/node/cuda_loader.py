"""Fills a GPU's allocation with a folder's weights, in a process of its own: `python -m ...cuda_loader REQUEST`.

A copy to the GPU needs a context, which costs some 0.5 GB there for as long as the process lives; so the node does
not copy, this child does, and ends. It needs no torch: the node's own reading and conversion, pinned memory, the
driver. It says on stdout, a JSON line each, how far it is, and at the end what it loaded or what was wrong.
"""

from __future__ import annotations

import ctypes
import logging
import signal
import sys
from pathlib import Path

import msgspec
import numpy as np

from contracts.stack import Precision
from python_backend.cuda import CudaError, CudaUnavailable, Driver, find_gpu
from python_backend.cuda_driver import CudaDriver
from python_backend.cuda_sharing import in_context, open_piece
from python_backend.node.arena import write_table
from python_backend.node.errors import CheckpointMalformed, NodeError
from python_backend.node.fingerprint import FileStamps, Fingerprint
from python_backend.node.loading import fill, plan_load

PINNED_BYTES = 16 << 20
"""Each of two: what a piece of 8 MiB of bf16 becomes as float32."""
PROGRESS_STEP_BYTES = 64 << 20
PR_SET_PDEATHSIG = 1


class LoadRequest(msgspec.Struct, frozen=True, kw_only=True):
    folder: str
    precision: Precision
    run_dir: str
    fd: int
    """Inherited: the allocation, as `cuda_sharing` opens it."""
    num_bytes: int
    """What the node's plan needs; another number here means that the files changed meanwhile."""
    device: str


class Progress(msgspec.Struct, frozen=True, tag=True):
    done_bytes: int
    total_bytes: int


class Loaded(msgspec.Struct, frozen=True, tag=True):
    table_path: str
    fingerprint: Fingerprint
    stamps: FileStamps


class Failed(msgspec.Struct, frozen=True, tag=True):
    error: str
    """Name of a class of `errors`, or of Python's."""
    text: str


Report = Progress | Loaded | Failed


class PinnedWriter:
    """Copies to `address` through two pinned buffers, so that reading goes on while the last piece travels."""

    def __init__(self, driver: Driver, address: int, buffer_bytes: int = PINNED_BYTES) -> None:
        """Raises CudaError."""
        self._driver, self._address, self._buffer_bytes = driver, address, buffer_bytes
        self._buffers = [driver.allocate_pinned(buffer_bytes) for _ in range(2)]
        self._streams = [driver.create_stream() for _ in range(2)]
        self._turn = 0

    def write(self, offset_bytes: int, data: memoryview) -> None:
        """`data` may change as soon as this returns. Raises CudaError."""
        source = np.frombuffer(data, np.uint8).ctypes.data if len(data) else 0
        for start in range(0, len(data), self._buffer_bytes):
            count = min(self._buffer_bytes, len(data) - start)
            buffer, stream = self._buffers[self._turn], self._streams[self._turn]
            self._driver.wait_for_stream(stream)  # what this buffer held has arrived
            ctypes.memmove(buffer, source + start, count)
            self._driver.copy_to_device(self._address + offset_bytes + start, buffer, count, stream)
            self._turn = 1 - self._turn

    def close(self) -> None:
        """Returns when everything has arrived. Raises CudaError."""
        for stream in self._streams:
            self._driver.wait_for_stream(stream)
        for buffer in self._buffers:
            self._driver.free_pinned(buffer)


def load(request: LoadRequest, driver: Driver) -> Loaded:
    """Raises CheckpointError, CudaError, CudaUnavailable."""
    folder = Path(request.folder)
    plan = plan_load(folder, request.precision)
    if plan.layout.num_bytes != request.num_bytes:
        raise CheckpointMalformed(
            f"{folder} changed while it was loaded: {request.num_bytes} bytes were planned,"
            f" {plan.layout.num_bytes} are there; load it again"
        )
    gpu = find_gpu(driver, request.device)
    with in_context(driver, gpu):
        piece = open_piece(driver, gpu, request.fd, request.num_bytes, writable=True)
        try:
            writer = PinnedWriter(driver, piece.address)
            fingerprint = fill(plan, writer.write, _ProgressLines())
            writer.close()
            driver.synchronize()
        finally:
            piece.close()
    table_path = write_table(Path(request.run_dir), fingerprint, plan.layout.table)
    return Loaded(str(table_path), fingerprint, plan.stamps)


class _ProgressLines:
    """An OnProgress that says something only every PROGRESS_STEP_BYTES, and at the end."""

    def __init__(self) -> None:
        self._said_bytes = -PROGRESS_STEP_BYTES

    def __call__(self, done: int, total: int) -> None:
        if done - self._said_bytes >= PROGRESS_STEP_BYTES or done >= total:
            self._said_bytes = done
            say(Progress(done, total))


def say(report: Report) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
    sys.stdout.buffer.flush()


def run(request: LoadRequest, driver: Driver) -> int:
    """Load and report; the exit status."""
    try:
        say(load(request, driver))
    except (NodeError, CudaError, CudaUnavailable, OSError) as exc:
        say(Failed(type(exc).__name__, str(exc)))
        return 1
    return 0


def main() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is the launcher's to handle
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    request = msgspec.json.decode(sys.argv[1], type=LoadRequest)
    try:
        driver = CudaDriver()
    except (CudaError, CudaUnavailable) as exc:
        say(Failed(type(exc).__name__, str(exc)))
        sys.exit(1)
    sys.exit(run(request, driver))


if __name__ == "__main__":
    main()
