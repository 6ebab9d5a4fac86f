"""One device's memory in few pieces: one for all KV, one per set of weights, each opened by other processes.

On the CPU the pieces are memfds, without names in /dev/shm; `cuda_arena` does the same with a GPU's memory.

Whoever gets a descriptor maps the same pages. Weights are sealed against every later write, so a worker can map
them read-only and nothing else; the KV memfd cannot be resized, so nobody can pull it from under the others.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np

from contracts.stack import Precision
from python_backend.messages import TensorSpec
from python_backend.node.config import available_memory_bytes
from python_backend.node.errors import ArenaClosed, PoolTooLarge, PrecisionImpossible
from python_backend.node.fingerprint import FileStamps, Fingerprint
from python_backend.node.layout import PAGE_BYTES
from python_backend.node.loading import LoadPlan, OnProgress, fill, log_progress, no_progress, plan_load

MADV_POPULATE_WRITE = 23  # Linux 5.14; not in Python's mmap module
F_SEAL_FUTURE_WRITE = 0x10  # not in Python's fcntl module before 3.13 on every libc
PREFAULT_CHUNK_BYTES = 16 << 20
"""A chunk blocks the interpreter (madvise holds the GIL): about 15 ms of it."""


@dataclass(frozen=True)
class WeightSet:
    """Resident weights. `Arena.release` gives their memory back; until then `fd` stays open."""

    fd: int
    """What BindModel carries: a sealed memfd, or whatever opens a GPU's allocation in another process."""
    num_bytes: int
    table_path: Path
    """JSON file: tensor name -> TensorSpec."""
    fingerprint: Fingerprint
    stamps: FileStamps
    """Of the files it was read from."""


class Arena(Protocol):
    """One device's memory. `device`: "cpu" or "cuda:UUID", as BindModel has it. Calls may block for seconds, so
    they are made in a thread, never two at a time."""

    @property
    def device(self) -> str: ...

    @property
    def precisions(self) -> frozenset[Precision]:
        """What weights can be kept as here."""
        ...

    def available_bytes(self) -> int:
        """What could still be allocated."""
        ...

    def create_kv(self, num_bytes: int) -> int:
        """The KV arena, once; the descriptor that SpawnWorker carries stays the arena's. Raises PoolTooLarge."""
        ...

    def load_weights(self, folder: Path, precision: Precision, run_dir: Path) -> WeightSet:
        """Stream a folder's safetensors in, converted on the way, and write the tensor table into `run_dir`.

        Raises CheckpointError; nothing is left allocated then.
        """
        ...

    def release(self, weights: WeightSet) -> None:
        """Give the memory of a set back (for good when the last process has unmapped it); its table goes too."""
        ...

    def close(self) -> None:
        """Release everything; a call that is at work in another thread ends soon with ArenaClosed. Idempotent."""
        ...


class CpuArena:
    """The machine's own memory."""

    device = "cpu"
    precisions: frozenset[Precision] = frozenset(("fp32", "bf16", "int8"))

    def __init__(self) -> None:
        self._kv_fd = -1
        self._weights: dict[int, WeightSet] = {}
        self._is_closed = False

    def available_bytes(self) -> int:
        return available_memory_bytes()

    def create_kv(self, num_bytes: int) -> int:
        self._kv_fd = create_kv_arena(num_bytes, self._unless_closed(log_progress("KV pool")))
        return self._kv_fd

    def load_weights(self, folder: Path, precision: Precision, run_dir: Path) -> WeightSet:
        if precision not in self.precisions:
            raise PrecisionImpossible(
                f"precision = {precision!r} needs a GPU; on the CPU it must be one of"
                f" {', '.join(sorted(self.precisions))}"
            )
        on_progress = self._unless_closed(log_progress(f"weights {folder.name}"))
        weights = load_weights(folder, precision, run_dir, on_progress)
        self._weights[weights.fd] = weights
        return weights

    def release(self, weights: WeightSet) -> None:
        del self._weights[weights.fd]
        weights.table_path.unlink(missing_ok=True)
        os.close(weights.fd)

    def close(self) -> None:
        self._is_closed = True
        for weights in list(self._weights.values()):
            self.release(weights)
        if self._kv_fd >= 0:
            os.close(self._kv_fd)
            self._kv_fd = -1

    def _unless_closed(self, on_progress: OnProgress) -> OnProgress:
        def on_progress_unless_closed(done: int, total: int) -> None:
            if self._is_closed:
                raise ArenaClosed(f"the node stops with {done >> 20} of {total >> 20} MiB in place")
            on_progress(done, total)

        return on_progress_unless_closed


def create_kv_arena(pool_bytes: int, on_progress: OnProgress = no_progress) -> int:
    """A memfd of `pool_bytes`, every page there (a first touch later costs 1 ms per 0.7 MB); the caller owns it.

    Raises PoolTooLarge.
    """
    fd = os.memfd_create("tidegate-kv", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, pool_bytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        if pool_bytes:
            with _writable(fd, pool_bytes) as arena:
                prefault(arena, on_progress)
    except ArenaClosed:
        os.close(fd)
        raise
    except OSError as exc:
        os.close(fd)
        raise PoolTooLarge(
            f"the machine does not give {pool_bytes} bytes for the KV pool ({exc}); lower pool_bytes"
        ) from exc
    return fd


def prefault(arena: mmap.mmap, on_progress: OnProgress) -> None:
    """Make every page of the mapping present, in huge pages where the system allows. Raises OSError."""
    with suppress(OSError):
        arena.madvise(mmap.MADV_HUGEPAGE)
    total = len(arena)
    for start in range(0, total, PREFAULT_CHUNK_BYTES):
        length = min(PREFAULT_CHUNK_BYTES, total - start)
        try:
            arena.madvise(MADV_POPULATE_WRITE, start, length)
        except OSError as exc:
            if exc.errno != errno.EINVAL:
                raise
            _touch_pages(arena, start, length)
        on_progress(start + length, total)


def load_weights(
    folder: Path, precision: Precision, run_dir: Path, on_progress: OnProgress = no_progress
) -> WeightSet:
    """Stream a folder's safetensors into a memfd and seal it; writes the tensor table into `run_dir`.

    The caller owns the descriptor. Raises CheckpointError; nothing is left open then.
    """
    plan = plan_load(folder, precision)
    num_bytes = plan.layout.num_bytes
    fd = os.memfd_create(f"tidegate-weights-{folder.name}"[:200], os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, num_bytes)
        with _writable(fd, num_bytes) as arena:
            fingerprint = _fill(arena, plan, on_progress)
        # Not F_SEAL_WRITE: kernels before 6.7 then refuse even read-only shared mappings. With our own mapping
        # gone, F_SEAL_FUTURE_WRITE leaves nobody who could write.
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | F_SEAL_FUTURE_WRITE | fcntl.F_SEAL_SEAL
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        table_path = write_table(run_dir, fingerprint, plan.layout.table)
    except BaseException:
        os.close(fd)
        raise
    return WeightSet(fd, num_bytes, table_path, fingerprint, plan.stamps)


def write_table(run_dir: Path, fingerprint: Fingerprint, table: dict[str, TensorSpec]) -> Path:
    """Equal weights in two folders write equal tables, but each its own: one may go before the other."""
    handle, name = tempfile.mkstemp(
        prefix=f"tensors-{fingerprint.digest()[:24]}-", suffix=".json", dir=run_dir
    )
    with os.fdopen(handle, "wb") as file:
        file.write(msgspec.json.encode(table))
    return Path(name)


def _fill(arena: mmap.mmap, plan: LoadPlan, on_progress: OnProgress) -> Fingerprint:
    with memoryview(arena) as view:

        def write(offset_bytes: int, data: memoryview) -> None:
            view[offset_bytes : offset_bytes + len(data)] = data

        return fill(plan, write, on_progress)


@contextmanager
def _writable(fd: int, num_bytes: int) -> Iterator[mmap.mmap]:
    arena = mmap.mmap(fd, num_bytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    try:
        yield arena
    except BaseException:
        with suppress(BufferError):  # the traceback still holds views; the mapping goes with it
            arena.close()
        raise
    arena.close()


def _touch_pages(arena: mmap.mmap, start: int, length: int) -> None:
    pages = np.frombuffer(arena, np.uint8)[start : start + length : PAGE_BYTES]
    pages[:] = 0
