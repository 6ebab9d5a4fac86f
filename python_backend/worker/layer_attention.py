"""How one layer of one model attends, as transformers passes it to the attention function, and that computed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

_SOFTCAP_SCORES = 1 << 23
"""Scores that are made at once where SDPA cannot compute them: 32 MiB."""


@dataclass(frozen=True)
class LayerAttention:
    """softmax(mask(softcap(scaling * q k^T))) v, as transformers' eager attention computes it."""

    scaling: float | None = None
    """None: 1 / sqrt(head_dim)."""
    sliding_window: int | None = None
    """The query at position p sees the keys at p - sliding_window + 1 .. p. None: all up to p."""
    softcap: float | None = None
    """scores -> softcap * tanh(scores / softcap), before the mask. None: as they are."""


def attention_of(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    how: LayerAttention,
    mask: Tensor | None = None,
    is_causal: bool = False,
) -> Tensor:
    """query [B, Hq, Q, D], keys and values [B, Hkv, L, D] -> [B, Hq, Q, D]. The window is in the mask (additive,
    broadcast to [B, 1, Q, L]) or in the choice of the keys; `is_causal` stands for a mask when Q = L."""
    if how.softcap is None:
        return F.scaled_dot_product_attention(
            query,
            keys,
            values,
            attn_mask=mask,
            is_causal=is_causal,
            scale=how.scaling,
            enable_gqa=query.shape[1] != keys.shape[1],
        )
    if is_causal:
        mask = torch.full((query.shape[2], keys.shape[2]), float("-inf"), device=query.device).triu_(1)
    tile = max(1, _SOFTCAP_SCORES // (query.shape[0] * query.shape[1] * keys.shape[2]))
    tiles = [
        _softcapped(query[:, :, first : first + tile], keys, values, how, _rows(mask, first, tile))
        for first in range(0, query.shape[2], tile)
    ]
    return torch.cat(tiles, dim=2)


def _rows(mask: Tensor | None, first: int, count: int) -> Tensor | None:
    return mask if mask is None or mask.shape[-2] == 1 else mask[..., first : first + count, :]


def _softcapped(
    query: Tensor, keys: Tensor, values: Tensor, how: LayerAttention, mask: Tensor | None
) -> Tensor:
    batch, heads, count, head_dim = query.shape
    scaling, softcap = how.scaling or head_dim**-0.5, how.softcap or 1.0
    grouped = query.reshape(batch, keys.shape[1], -1, head_dim)
    scores = (grouped @ keys.transpose(2, 3)).view(batch, heads, count, -1)
    scores = scores.mul_(scaling / softcap).tanh_().mul_(softcap)
    if mask is not None:
        scores = scores + mask
    wide = torch.promote_types(scores.dtype, torch.float32)
    weights = scores.softmax(dim=-1, dtype=wide).to(query.dtype).view(batch, keys.shape[1], -1, keys.shape[2])
    return (weights @ values).view(batch, heads, count, head_dim)
