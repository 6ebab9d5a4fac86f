"""The KV memory as a tensor: the shape of a token's K and V, of a block, and how they are written and read.

Layout: token-major, `[slots, layers, 2, kv_heads, row]`. A row is one head's K or V of one token: `head_dim`
numbers, and with int8 the float32 scale right behind them, so that one gather brings both. A token is padded to
a sixteenth of a page: then 16 tokens, a block, are whole pages for every model and precision, and the slots of
all blocks still lie at one stride.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from python_backend.worker.families import survey

PAGE_BYTES = 4096
BLOCK_TOKENS = 16
KV_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.int8}
"""By `ServedModel.kv_precision`."""
_INT8_MAX = 127
_SCALE_BYTES = 4
_SMALLEST_SCALE = 1e-30
"""A row of zeros must not divide by zero."""


@dataclass(frozen=True)
class KVLayout:
    """Shape of one token's K and V, and of a block."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_tokens: int = BLOCK_TOKENS
    """A multiple of 16."""
    dtype: torch.dtype = torch.float32
    """int8: one symmetric scale per token, layer and head beside the numbers."""

    @classmethod
    def of(cls, model: PreTrainedModel, dtype: torch.dtype = torch.float32) -> KVLayout:
        """Of a model whose class and weights can be served. Raises ModelRefused."""
        shape = survey(model)
        return cls(shape.num_layers, shape.num_kv_heads, shape.head_dim, dtype=dtype)

    @property
    def row_elements(self) -> int:
        """Of `dtype`, in one head's K or V of one token."""
        return self.head_dim + (_SCALE_BYTES if self.dtype == torch.int8 else 0)

    @property
    def token_shape(self) -> tuple[int, int, int, int]:
        return (self.num_layers, 2, self.num_kv_heads, self.row_elements)

    @property
    def token_bytes(self) -> int:
        """With padding: from one slot to the next."""
        used = self.num_layers * 2 * self.num_kv_heads * self.row_elements * self.dtype.itemsize
        unit = PAGE_BYTES // BLOCK_TOKENS
        return -(-used // unit) * unit

    @property
    def block_bytes(self) -> int:
        return self.token_bytes * self.block_tokens


@dataclass(frozen=True)
class KVCache:
    """The KV memory of one device, seen with one model's layout."""

    layout: KVLayout
    rows: Tensor
    """[slots, layers, 2, kv_heads, row_elements]; a slot is block * block_tokens + offset."""

    @property
    def device(self) -> torch.device:
        return self.rows.device

    @property
    def num_blocks(self) -> int:
        return self.rows.shape[0] // self.layout.block_tokens

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """slots [T]; keys and values [Hkv, T, D]."""
        packed = torch.stack((keys, values)).permute(2, 0, 1, 3)
        if self.layout.dtype == torch.int8:
            packed = quantize_rows(packed)
        self.rows[:, layer].index_copy_(0, slots, packed.to(self.layout.dtype))

    def read(self, layer: int, slots: Tensor | slice, dtype: torch.dtype) -> Tensor:
        """slots [T], or a run of them -> K and V, [T, 2, Hkv, D] in `dtype`; a run of that very dtype is a view."""
        rows = self.rows[:, layer]
        gathered = rows[slots] if isinstance(slots, slice) else rows.index_select(0, slots)
        return dequantize_rows(gathered, dtype) if self.layout.dtype == torch.int8 else gathered.to(dtype)


def quantize_rows(rows: Tensor) -> Tensor:
    """[..., D] floating -> [..., D + 4] int8: symmetric by the row's largest magnitude, then the float32 scale."""
    scales = rows.abs().amax(dim=-1, keepdim=True).float().div_(_INT8_MAX).clamp_(min=_SMALLEST_SCALE)
    numbers = (rows / scales).round_().to(torch.int8)
    return torch.cat((numbers, scales.view(torch.int8)), dim=-1)


def dequantize_rows(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """The inverse of quantize_rows: [..., D + 4] int8 -> [..., D] in `dtype`."""
    scales = rows[..., -_SCALE_BYTES:].contiguous().view(torch.float32)
    return rows[..., :-_SCALE_BYTES].to(dtype).mul_(scales.to(dtype))


def view_arena(raw: Tensor, layout: KVLayout) -> KVCache:
    """The KV memory (uint8) with a model's layout; a tail short of a block is cut off."""
    num_slots = raw.numel() // layout.block_bytes * layout.block_tokens
    whole = raw[: num_slots * layout.token_bytes].view(layout.dtype).view(num_slots, -1)
    used = whole[:, : layout.num_layers * 2 * layout.num_kv_heads * layout.row_elements]
    return KVCache(layout, used.view(num_slots, *layout.token_shape))
