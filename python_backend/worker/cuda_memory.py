"""A GPU's shared memory as torch tensors: opened once per worker, after the fork, on the GPU with the right UUID.

torch takes the mapping over by `__cuda_array_interface__`, without a copy; its own allocator never sees it. A
worker ends by os._exit and the driver takes everything back; who closes by hand lets go of the tensors first.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from python_backend.cuda import Driver, find_gpu, refuse_expandable_segments
from python_backend.cuda_driver import CudaDriver
from python_backend.cuda_sharing import OpenedPiece, open_piece

log = logging.getLogger(__name__)


class _Exported:
    """Protocol of CUDA arrays, version 3."""

    def __init__(self, address: int, num_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (num_bytes,),
            "typestr": "|u1",
            # torch refuses the read-only flag; what is read-only is so by its mapping.
            "data": (address, False),
            "strides": None,
            "version": 3,
        }


def tensor_at(address: int, num_bytes: int, device: torch.device) -> Tensor:
    """uint8 [num_bytes] over memory of this GPU that somebody else owns."""
    exported: Any = _Exported(address, num_bytes)
    tensor = torch.as_tensor(exported, device=device)
    if tensor.data_ptr() != address:
        raise RuntimeError(f"torch copied {num_bytes} bytes of shared memory instead of viewing them")
    return tensor


@dataclass(frozen=True)
class GpuMemory:
    """`tensor`: uint8, exactly the bytes that were asked for."""

    tensor: Tensor
    piece: OpenedPiece

    def close(self, synchronize: Callable[[], None]) -> None:
        """Everything that runs on it ends first. Views of it must not be used any more."""
        synchronize()
        self.piece.close()


@dataclass(frozen=True)
class GpuContext:
    """This process on one GPU."""

    device: torch.device
    """With the ordinal that the GPU has in this process."""
    driver: Driver
    view: Callable[[int, int, torch.device], Tensor] = tensor_at

    def open(self, fd: int, num_bytes: int, *, writable: bool) -> GpuMemory:
        """`fd`: from the node, stays the caller's. At most once for each piece. Raises CudaError."""
        gpu = self.driver.gpus()[self.device.index]
        piece = open_piece(self.driver, gpu, fd, num_bytes, writable)
        return GpuMemory(self.view(piece.address, num_bytes, self.device), piece)

    def synchronize(self) -> None:
        """Wait for everything that this process has started on the GPU."""
        torch.cuda.synchronize(self.device)


def start_cuda(device: str) -> GpuContext:
    """Make a context on the GPU "cuda:GPU-UUID", whatever ordinal it has here. Only after the fork: a process that
    was forked from one with a context cannot have its own. Raises CudaUnavailable, CudaError."""
    refuse_expandable_segments(os.environ)
    driver = CudaDriver()
    local = torch.device("cuda", find_gpu(driver, device).ordinal)
    torch.cuda.set_device(local)
    torch.zeros(1, device=local)  # the context is made by its first use
    return GpuContext(local, driver)


class GpuBlocks:
    """The KV memory behind `blocks.Memory`: the GPU protects nothing by block, so all of it is in reach.

    What must hold instead: a block that goes back, or that others may read, has no kernel of ours running on it.
    """

    def __init__(self, raw: Tensor, block_bytes: int, synchronize: Callable[[], None]) -> None:
        """`raw`: uint8, all blocks."""
        self.raw = raw
        self._block_bytes = block_bytes
        self._synchronize = synchronize

    def open_private(self, blocks: range) -> None:
        """Zero: what another request left there is gone, and what is masked stays finite."""
        self.raw[blocks.start * self._block_bytes : blocks.stop * self._block_bytes].zero_()

    def open_shared(self, blocks: range) -> None:
        """Written before it was published, by a worker that waited for its writes."""

    def close(self, blocks: range) -> None:
        """Before the node hands them on: our kernels, the zeroing included, are through with them."""
        self._synchronize()


def refuse_cuda_before_fork() -> None:
    """The fork server must have no trace of CUDA: its children would inherit a driver that cannot work for them.

    Raises RuntimeError.
    """
    opened = [path for path in _open_paths() if path.startswith("/dev/nvidia-uvm")]
    if torch.cuda.is_initialized() or opened:  # type: ignore[no-untyped-call]
        raise RuntimeError(
            f"CUDA was initialised in the fork server ({', '.join(opened) or 'by torch'}), so no worker could use"
            " it; something that the model imports does that"
        )


def _open_paths() -> list[str]:
    paths = []
    for name in os.listdir("/proc/self/fd"):
        try:
            paths.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:  # the listing's own
            continue
    return paths
