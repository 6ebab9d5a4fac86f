"""One batch through a module: bytes to tensors, forward, tensors to bytes; when it fails, which request it was."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from python_backend.messages import BatchResult, RunBatch, TensorData
from python_backend.worker.errors import RequestRefused
from python_backend.worker.modules import NamedModule, Outputs
from python_backend.worker.trial import describe

log = logging.getLogger(__name__)


def run_batch(module: NamedModule, batch: RunBatch) -> BatchResult:
    """When the forward fails, each request runs alone: one that cannot be computed costs the others only time."""
    tensors = {data.name: to_tensor(data) for data in batch.tensors}
    try:
        made = _forward(module, tensors, batch)
        return BatchResult(batch.batch_id, [to_data(name, tensor) for name, tensor in made.items()])
    except Exception as exc:  # a model's code may raise anything; its requests get the reason
        if len(batch.sizes) == 1 or isinstance(exc, RequestRefused):
            log.exception("a batch of %d requests failed", len(batch.sizes))
            return BatchResult(batch.batch_id, [], error_code="INTERNAL", error=_text_of(exc))
    return _run_alone(module, tensors, batch)


def _run_alone(module: NamedModule, tensors: Mapping[str, Tensor], batch: RunBatch) -> BatchResult:
    parts: list[Outputs | None] = []
    errors: dict[int, str] = {}
    first = 0
    for index, size in enumerate(batch.sizes):
        rows = {name: tensor[first : first + size] for name, tensor in tensors.items()}
        first += size
        try:
            parts.append(_forward(module, rows, batch))
        except Exception as exc:  # as above
            log.warning("request %d of %d in a batch failed: %s", index, len(batch.sizes), _text_of(exc))
            errors[index] = _text_of(exc)
            parts.append(None)
    try:
        joined = _joined(parts, batch.sizes)
    except (RuntimeError, StopIteration):  # all failed, or their outputs do not fit together
        text = next(iter(errors.values()), "the requests' outputs have different shapes")
        return BatchResult(batch.batch_id, [], error_code="INTERNAL", error=text)
    return BatchResult(batch.batch_id, [to_data(name, tensor) for name, tensor in joined.items()], errors)


def _forward(module: NamedModule, tensors: Mapping[str, Tensor], batch: RunBatch) -> Outputs:
    num_rows = next(iter(tensors.values())).shape[0]
    made = module.run(tensors, batch.outputs)
    for name, tensor in made.items():
        if tensor.dim() == 0 or tensor.shape[0] != num_rows:
            raise RequestRefused(
                "INTERNAL",
                f"output {name!r} has shape {list(tensor.shape)}, its first dimension must be the {num_rows} rows",
            )
    return made


def _joined(parts: Sequence[Outputs | None], sizes: Sequence[int]) -> Outputs:
    """Rows of all requests, zero where a request failed. Raises StopIteration when all did."""
    pattern = next(part for part in parts if part is not None)
    return {
        name: torch.cat(
            [
                part[name] if part is not None else tensor.new_zeros((size, *tensor.shape[1:]))
                for part, size in zip(parts, sizes, strict=True)
            ]
        )
        for name, tensor in pattern.items()
    }


def to_tensor(data: TensorData) -> Tensor:
    """Its own memory, so that a module may write to its inputs."""
    array = np.frombuffer(data.data, dtype=np.dtype(data.dtype)).reshape(data.shape)
    return torch.from_numpy(array.copy())


def to_data(name: str, tensor: Tensor) -> TensorData:
    """bfloat16, which numpy does not have, goes as float32."""
    plain = tensor.detach().to("cpu")
    array = (plain.float() if plain.dtype is torch.bfloat16 else plain).contiguous().numpy()
    return TensorData(name, array.dtype.name, list(array.shape), array.tobytes())


def _text_of(exc: BaseException) -> str:
    return str(exc) if isinstance(exc, RequestRefused) else describe(exc)
