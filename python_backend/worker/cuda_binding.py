"""A model for a GPU, in two steps: its skeleton over stand-ins in the fork server, its weights after the fork.

The fork server must not touch CUDA, so it cannot map the weights. It builds the model over stand-ins of the right
shapes and types that take no memory, which finds out everything that can be wrong with it. A worker then makes its
context, maps the weights read-only and puts them in the stand-ins' places, wherever the model has put those (tied,
quantized, under another prefix): each is known by its storage.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from pathlib import Path

import msgspec
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from python_backend.messages import BindModel, TensorSpec
from python_backend.worker.cuda_memory import GpuContext, refuse_cuda_before_fork
from python_backend.worker.skeleton import build_skeleton, map_views, tensor_views

CUDA_PREFIX = "cuda:"


def is_for_gpu(bind: BindModel) -> bool:
    return bind.device.startswith(CUDA_PREFIX)


def build(bind: BindModel, weights_fd: int) -> tuple[PreTrainedModel, GpuWeights | None]:
    """The skeleton over the weights where the device is the CPU, else over stand-ins for those that come along.

    Raises ModelRefused; RuntimeError when that has initialised CUDA.
    """
    if not is_for_gpu(bind):
        return build_skeleton(bind, map_views(bind, weights_fd)), None
    weights = GpuWeights(bind, weights_fd)
    model = build_skeleton(bind, weights.stand_ins)
    refuse_cuda_before_fork()
    return model, weights


def stand_in(spec: TensorSpec) -> Tensor:
    """Shape and type of the tensor, one element of memory."""
    dtype: torch.dtype = getattr(torch, spec.dtype)
    return torch.zeros(1, dtype=dtype).as_strided(spec.shape, [0] * len(spec.shape))


class GpuWeights:
    """One model's weights, from bind to bound. Keeps a descriptor of them for the workers until it goes itself."""

    def __init__(self, bind: BindModel, weights_fd: int) -> None:
        self.bind = bind
        self._fd = os.dup(weights_fd)
        weakref.finalize(self, os.close, self._fd)
        table = msgspec.json.decode(Path(bind.table_path).read_bytes(), type=dict[str, TensorSpec])
        self._table = table
        self.stand_ins = {name: stand_in(spec) for name, spec in table.items()}

    def move_in(self, model: nn.Module, gpu: GpuContext) -> None:
        """Map the weights and put them into `model`, which was built over `stand_ins`; its other tensors (rope
        frequencies) follow. Raises CudaError."""
        memory = gpu.open(self._fd, self.bind.weights_bytes, writable=False)
        views = tensor_views(memory.tensor, self._table)
        place = {_storage(standing): views[name] for name, standing in self.stand_ins.items()}
        moved: dict[int, Tensor] = {}

        def on_gpu(tensor: Tensor) -> Tensor:
            if id(tensor) not in moved:
                at = place.get(_storage(tensor))
                moved[id(tensor)] = tensor.to(gpu.device) if at is None else at
            return moved[id(tensor)]

        for module in model.modules():
            replace_tensors(module, on_gpu)


def replace_tensors(module: nn.Module, replaced: Callable[[Tensor], Tensor]) -> None:
    """Every parameter, buffer and plain tensor attribute of this one module."""
    for name, parameter in list(module._parameters.items()):
        if parameter is not None:
            module._parameters[name] = nn.Parameter(replaced(parameter), requires_grad=False)
    for name, buffer in list(module._buffers.items()):
        if buffer is not None:
            module._buffers[name] = replaced(buffer)
    for name, value in list(vars(module).items()):
        if isinstance(value, Tensor):
            vars(module)[name] = replaced(value)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
