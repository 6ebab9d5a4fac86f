"""Attention over leased blocks, registered with transformers under one name.

transformers calls `attend` for every layer with this step's packed queries, keys and values; the step's
`AttentionPlan` is the forward's context. No mask function is registered for the name, so
models build no mask: causality is the plan's to keep. One plan per kind of device: `attention_cpu`,
`attention_cuda`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from transformers import AttentionInterface

from python_backend.worker.attention_cpu import CpuPlan
from python_backend.worker.families import check_arguments
from python_backend.worker.forward_context import forward_context
from python_backend.worker.kv import KVCache
from python_backend.worker.layer_attention import LayerAttention

if TYPE_CHECKING:  # what plans need of it is duck-typed: the GPU checks run where msgspec is not installed
    from python_backend.worker.scheduler import Scheduled

ATTENTION_NAME = "tidegate_blocks"


class AttentionPlan(Protocol):
    """What one step's attention needs beside q, k and v."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, how: LayerAttention) -> Tensor:
        """query [1, Hq, T, D], key and value [1, Hkv, T, D] -> [1, T, Hq, D]; writes K and V to the arena."""
        ...


def plan_attention(cache: KVCache, batch: list[Scheduled]) -> AttentionPlan:
    """Index tensors for one step. `batch`: decodes first, as the packed input has them."""
    if cache.device.type == "cuda":
        # Not at the top: torch's CUDA parts are loaded only where they run.
        from python_backend.worker.attention_cuda import CudaPlan

        return CudaPlan.of(cache, batch)
    return CpuPlan.of(cache, batch)


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """query [1, Hq, T, D], key and value [1, Hkv, T, D] -> ([1, T, Hq, D], None). Raises ModelRefused for an
    argument that is not implemented."""
    check_arguments(others)
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    how = LayerAttention(scaling, sliding_window, softcap)
    plan: AttentionPlan = forward_context()
    return plan.attend(layer, query, key, value, how), None


def register() -> None:
    """Make `attn_implementation=ATTENTION_NAME` known to transformers. Idempotent."""
    AttentionInterface.register(ATTENTION_NAME, attend)
