"""A GPU's memory as an `Arena`: one allocation for all KV, one per set of weights, each exported as a descriptor.

Several GPUs are several arenas, so several node daemons: nothing is shared across GPUs. The node creates and
exports only. It has no CUDA context (0.5 GB that no worker would get) unless the driver exports no descriptors;
what must touch the memory is done by `cuda_loader`'s child and by the workers.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from contracts.stack import Precision
from python_backend.cuda import (
    OUT_OF_MEMORY,
    CudaError,
    CudaUnavailable,
    Driver,
    find_gpu,
    refuse_expandable_segments,
)
from python_backend.cuda_driver import CudaDriver, free_bytes_by_management
from python_backend.cuda_sharing import SharedPiece, can_export_fds
from python_backend.node import errors
from python_backend.node.arena import WeightSet
from python_backend.node.cuda_loader import Failed, Loaded, LoadRequest, Progress, Report
from python_backend.node.errors import (
    ArenaClosed,
    CheckpointError,
    DeviceUnavailable,
    NodeError,
    PoolTooLarge,
    WeightsTooLarge,
)
from python_backend.node.loading import OnProgress, log_progress, plan_load

logger = logging.getLogger(__name__)

LOADER_COMMAND = (sys.executable, "-m", "python_backend.node.cuda_loader")
WORKERS_SHARE = 0.1
WORKERS_MIN_BYTES = 2 << 30
"""Left out of what is available: every worker's context takes about 0.5 GB of the GPU, its activations more."""


class CudaArena:
    """One GPU. `device`: "cuda" (the first visible) or "cuda:GPU-UUID"."""

    precisions: frozenset[Precision] = frozenset(("fp32", "bf16", "int8", "fp8"))

    def __init__(
        self,
        device: str,
        driver: Driver | None = None,
        loader_command: Sequence[str] = LOADER_COMMAND,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """Raises DeviceUnavailable."""
        try:
            refuse_expandable_segments(environ)
            self._driver = driver or CudaDriver()
            self._gpu = find_gpu(self._driver, device)
            self._is_legacy = not can_export_fds(self._driver, self._gpu)
        except (CudaError, CudaUnavailable) as exc:
            raise DeviceUnavailable(str(exc)) from exc
        if self._is_legacy:
            logger.warning(
                "GPU %s: sharing by legacy IPC, which costs the node a CUDA context and does not protect weights",
                self._gpu.uuid,
            )
        self._loader_command = tuple(loader_command)
        self._kv: SharedPiece | None = None
        self._weights: dict[int, SharedPiece] = {}
        self._tables: dict[int, Path] = {}
        self._loader: subprocess.Popen[bytes] | None = None
        self._is_closed = False

    @property
    def device(self) -> str:
        return f"cuda:{self._gpu.uuid}"

    def available_bytes(self) -> int:
        """What is free, less what workers need beside the pool."""
        total = self._driver.total_bytes(self._gpu.ordinal)
        free = free_bytes_by_management(self._gpu.uuid)
        if free is None:
            free = total - self._allocated_bytes()
            logger.warning("NVML does not say what GPU %s has free; counting with all of it", self._gpu.uuid)
        return max(0, free - max(WORKERS_MIN_BYTES, int(WORKERS_SHARE * total)))

    def create_kv(self, num_bytes: int) -> int:
        try:
            self._kv = SharedPiece(self._driver, self._gpu, num_bytes, self._is_legacy)
        except CudaError as exc:
            if exc.code == OUT_OF_MEMORY:
                raise PoolTooLarge(
                    f"GPU {self._gpu.uuid} does not give {num_bytes} bytes for the KV pool ({exc})"
                ) from exc
            raise DeviceUnavailable(str(exc)) from exc
        logger.info("KV pool: %d MiB on GPU %s", self._kv.num_bytes >> 20, self._gpu.uuid)
        return self._kv.fd

    def load_weights(self, folder: Path, precision: Precision, run_dir: Path) -> WeightSet:
        """As Arena has it; WeightsTooLarge, DeviceUnavailable too."""
        num_bytes = plan_load(folder, precision).layout.num_bytes
        piece = self._allocate(num_bytes, folder)
        request = LoadRequest(
            folder=str(folder),
            precision=precision,
            run_dir=str(run_dir),
            fd=piece.fd,
            num_bytes=num_bytes,
            device=self.device,
        )
        try:
            loaded = self._run_loader(request, log_progress(f"weights {folder.name}"))
        except BaseException:
            piece.release()
            raise
        self._weights[piece.fd] = piece
        self._tables[piece.fd] = Path(loaded.table_path)
        return WeightSet(piece.fd, num_bytes, Path(loaded.table_path), loaded.fingerprint, loaded.stamps)

    def release(self, weights: WeightSet) -> None:
        self._release(weights.fd)

    def close(self) -> None:
        self._is_closed = True
        if self._loader is not None:
            self._loader.kill()
        for fd in list(self._weights):
            self._release(fd)
        if self._kv is not None:
            self._kv.release()
            self._kv = None

    def _release(self, fd: int) -> None:
        self._tables.pop(fd).unlink(missing_ok=True)
        self._weights.pop(fd).release()

    def _allocated_bytes(self) -> int:
        pieces = [*self._weights.values(), *([self._kv] if self._kv else [])]
        return sum(piece.num_bytes for piece in pieces)

    def _allocate(self, num_bytes: int, folder: Path) -> SharedPiece:
        try:
            return SharedPiece(self._driver, self._gpu, num_bytes, self._is_legacy)
        except CudaError as exc:
            if exc.code != OUT_OF_MEMORY:
                raise DeviceUnavailable(str(exc)) from exc
            raise WeightsTooLarge(
                f"{folder.name} needs {num_bytes} bytes, GPU {self._gpu.uuid} does not give them ({exc})"
            ) from exc

    def _run_loader(self, request: LoadRequest, on_progress: OnProgress) -> Loaded:
        """Exec'ed, never forked: this process runs gRPC's threads."""
        if self._is_closed:
            raise ArenaClosed("the node stops before the weights are loaded")
        self._loader = subprocess.Popen(
            [*self._loader_command, msgspec.json.encode(request).decode()],
            pass_fds=(request.fd,),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            process_group=0,
        )
        try:
            report = _last_report(self._loader, on_progress)
            status = self._loader.wait()
        finally:
            self._loader.kill()
            self._loader.wait()
            self._loader = None
        if self._is_closed:
            raise ArenaClosed("the node stops while weights are loaded")
        if isinstance(report, Loaded) and status == 0:
            return report
        raise _error_of(report, status, request)


def _last_report(loader: subprocess.Popen[bytes], on_progress: OnProgress) -> Report | None:
    """Reads until the child has closed its stdout."""
    assert loader.stdout is not None  # noqa: S101 - Popen was given a pipe
    last: Report | None = None
    with loader.stdout as lines:
        for line in lines:
            last = msgspec.json.decode(line, type=Report)
            if isinstance(last, Progress):
                on_progress(last.done_bytes, last.total_bytes)
    return last


def _error_of(report: Report | None, status: int, request: LoadRequest) -> NodeError:
    if not isinstance(report, Failed):
        ended = f"was killed by signal {-status}" if status < 0 else f"exited with status {status}"
        return DeviceUnavailable(
            f"the loader of {request.folder} {ended} before it was done; its log is above"
        )
    known = getattr(errors, report.error, None)
    if isinstance(known, type) and issubclass(known, CheckpointError):
        return known(report.text)
    return DeviceUnavailable(f"loading {request.folder} onto {request.device}: {report.text}")
