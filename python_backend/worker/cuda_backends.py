"""Which attention a GPU worker uses, and the block size that it wants. Decided before CUDA is there, from versions
and types alone, since the fork server must say the block size; the worker proves it in its warm-up.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.attention

from python_backend.worker.kv import BLOCK_TOKENS

if TYPE_CHECKING:  # the GPU checks run where msgspec is not installed
    from contracts.stack import KVPrecision, Precision

BackendName = Literal["varlen", "padded"]
WISH_VARIABLE = "TIDEGATE_CUDA_ATTENTION"
FA2_PAGE_TOKENS = 256
"""FlashAttention 2 takes pages of a multiple of 256 tokens only (its check in mha_varlen_fwd)."""
FA3_PAGE_TOKENS = 64
MAX_FLASH_HEAD_DIM = 256


@dataclass(frozen=True)
class Backend:
    name: BackendName
    block_tokens: int
    reason: str
    flash_version: int = 2


@dataclass(frozen=True)
class Installed:
    """What this process could use. `flash_version`: 3 when torch was given FlashAttention 3, else 2."""

    has_paged_varlen: bool
    flash_version: int = 2

    @classmethod
    def look(cls) -> Installed:
        return cls(
            has_paged_varlen=_has_paged_varlen(),
            flash_version=_flash_version(),
        )


def choose_backend(
    precision: Precision,
    kv_precision: KVPrecision,
    head_dim: int,
    installed: Installed,
    environ: Mapping[str, str],
) -> Backend:
    """TIDEGATE_CUDA_ATTENTION=padded forces that, to tell a kernel's fault from ours."""
    if refusal := _no_flash(precision, kv_precision, head_dim):
        return Backend("padded", BLOCK_TOKENS, refusal)
    if environ.get(WISH_VARIABLE) == "padded":
        return Backend("padded", BLOCK_TOKENS, f"{WISH_VARIABLE}=padded")
    if installed.has_paged_varlen:
        if installed.flash_version >= 3:
            return Backend("varlen", FA3_PAGE_TOKENS, "FlashAttention 3 reads any page; 64 is one tile", 3)
        return Backend("varlen", FA2_PAGE_TOKENS, "FlashAttention 2 wants pages of a multiple of 256 tokens")
    missing = f"torch {torch.__version__} has no varlen_attn with block_table (2.13 has)"
    return Backend("padded", BLOCK_TOKENS, missing)


def _no_flash(precision: Precision, kv_precision: KVPrecision, head_dim: int) -> str:
    """Why no flash kernel can read this cache; "" when one can."""
    if precision != "bf16" or kv_precision != "bf16":
        return f"flash kernels compute in bf16, this is {precision} over a KV cache in {kv_precision}"
    if head_dim % 8 or head_dim > MAX_FLASH_HEAD_DIM:
        return (
            f"flash kernels take heads of a multiple of 8 up to {MAX_FLASH_HEAD_DIM}, these have {head_dim}"
        )
    return ""


def _has_paged_varlen() -> bool:
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return False
    return {"block_table", "seqused_k", "window_size", "scale", "enable_gqa"} <= set(
        inspect.signature(varlen_attn).parameters
    )


def _flash_version() -> int:
    """Of the implementation that torch was told to use (`activate_flash_attention_impl`)."""
    current = getattr(torch.nn.attention, "current_flash_attention_impl", lambda: None)()
    digits = [int(digit) for digit in str(current or "") if digit.isdigit()]
    return digits[0] if digits else 2
