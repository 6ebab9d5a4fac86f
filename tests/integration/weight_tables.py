"""Weights as the node lays them out (see `BindModel`), made of a model's state dict, for tests of the worker."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from contracts.stack import ModelKind, Precision
from python_backend.messages import BindModel, TensorSpec
from python_backend.worker.skeleton import build_skeleton, map_views

EXACT = ("lm_head", "embed_out", "gate", "router")
"""Modules whose weights are not quantized."""
LINEAR: tuple[type[nn.Module], ...] = (nn.Linear,)


def stored(model: PreTrainedModel, precision: Precision) -> dict[str, Tensor]:
    """The tensors of the table, by the contract for `precision`."""
    linears = {f"{path}.weight" for path, module in model.named_modules() if isinstance(module, LINEAR)}
    tensors: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        module = name.split(".")[-2]
        if precision == "bf16" and tensor.is_floating_point():
            tensors[name] = tensor.bfloat16()
        elif precision in ("int8", "fp8") and name in linears and module not in EXACT:
            tensors[name], tensors[f"{name}_scale"] = quantized(tensor.float(), precision)
        else:
            tensors[name] = tensor
    return tensors


def quantized(weight: Tensor, precision: Precision) -> tuple[Tensor, Tensor]:
    largest = 127.0 if precision == "int8" else torch.finfo(torch.float8_e4m3fn).max
    scale = weight.abs().amax(dim=1) / largest
    numbers = weight / scale[:, None]
    if precision == "int8":
        return numbers.round().to(torch.int8), scale
    return numbers.to(torch.float8_e4m3fn), scale


@contextmanager
def bound(
    model: PreTrainedModel, folder: Path, precision: Precision = "fp32", kind: ModelKind = "generate"
) -> Iterator[PreTrainedModel]:
    """The worker's model over a memfd with `model`'s weights. `folder` gets config.json and the table."""
    model.config.save_pretrained(folder)
    table: dict[str, TensorSpec] = {}
    raw = bytearray()
    for name, tensor in stored(model, precision).items():
        raw += b"\0" * (-len(raw) % 64)
        dtype = str(tensor.dtype).removeprefix("torch.")
        table[name] = TensorSpec(len(raw), list(tensor.shape), dtype)
        raw += tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    (folder / "table.json").write_bytes(msgspec.json.encode(table))
    raw += b"\0" * (-len(raw) % 4096)
    fd = os.memfd_create("weights")
    try:
        os.write(fd, raw)
        bind = BindModel(
            "tiny", kind, str(folder), str(folder / "table.json"), len(raw), 0, precision=precision
        )
        yield build_skeleton(bind, map_views(bind, fd))
    finally:
        os.close(fd)
