"""The KV arena as a tensor: the shape of a token's K and V, and of a block."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

PAGE_BYTES = 4096
_DTYPE = torch.float32


@dataclass(frozen=True)
class KVLayout:
    """Shape of one token's K and V, and of a block."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_tokens: int

    @classmethod
    def of(cls, model: PreTrainedModel) -> KVLayout:
        config = model.config.get_text_config()
        heads = config.num_attention_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        kv_heads = getattr(config, "num_key_value_heads", None) or heads
        layout = cls(config.num_hidden_layers, kv_heads, head_dim, block_tokens=16)
        while layout.block_bytes % PAGE_BYTES:
            layout = cls(layout.num_layers, kv_heads, head_dim, layout.block_tokens * 2)
        return layout

    @property
    def token_shape(self) -> tuple[int, int, int, int]:
        return (self.num_layers, 2, self.num_kv_heads, self.head_dim)

    @property
    def token_bytes(self) -> int:
        return self.num_layers * 2 * self.num_kv_heads * self.head_dim * _DTYPE.itemsize

    @property
    def block_bytes(self) -> int:
        return self.token_bytes * self.block_tokens


def view_arena(raw: Tensor, layout: KVLayout) -> Tensor:
    """The KV memory (uint8) as [slots, layers, 2, kv_heads, head_dim]; a tail short of a block is cut off."""
    num_blocks = raw.numel() // layout.block_bytes
    whole = raw[: num_blocks * layout.block_bytes]
    return whole.view(_DTYPE).view(num_blocks * layout.block_tokens, *layout.token_shape)
