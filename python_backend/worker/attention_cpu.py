"""Attention on CPU: per-sequence prefill, decodes batched by length.

Cache layout: the arena, seen with the model's strides, is `[slots, layers, 2, kv_heads, head_dim]`: token-major
inside a block. One `index_select` on slots gathers K and V of a layer together, and the gathered tensor is a
valid (strided) operand for SDPA, so nothing is copied twice. Measured against layer-major blocks at batch 16:
211 against 204 tokens/s, at 64: 396 against 312 (SmolLM2-135M, two threads).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from python_backend.worker.layer_attention import LayerAttention
from python_backend.worker.scheduler import Scheduled

_BUCKET_RATIO = 2
"""Decodes are padded to the longest of their bucket, which holds none shorter than longest / ratio."""
_BUCKET_MIN_TOKENS = 64
"""Below this length padding is cheaper than another kernel call."""


@dataclass(frozen=True)
class DecodeBucket:
    """Decodes of similar length. rows: [B] packed positions; slots: [B, L]; mask: [B, 1, 1, L] or None."""

    rows: Tensor
    slots: Tensor
    mask: Tensor | None


@dataclass(frozen=True)
class PrefillChunk:
    """Tokens start .. start + count of the packed input; `history` slots [H] lie in the cache before them."""

    start: int
    count: int
    history: Tensor | None
    mask: Tensor | None
    """[count, H + count], additive; None without history (plain causal)."""


@dataclass(frozen=True)
class CpuPlan:
    """One step's attention: the arena and where everything lies in it."""

    arena: Tensor
    """[slots, layers, 2, kv_heads, head_dim]"""
    write_slots: Tensor
    """[T]: where the packed tokens' K and V go."""
    decodes: list[DecodeBucket]
    prefills: list[PrefillChunk]

    @classmethod
    def of(cls, arena: Tensor, batch: list[Scheduled]) -> CpuPlan:
        """`batch`: decodes first, as the packed input has them."""
        writes = [entry.sequence.slots[entry.start : entry.start + entry.count] for entry in batch]
        decodes = [(row, entry) for row, entry in enumerate(batch) if entry.is_decode]
        others = batch[len(decodes) :]
        return cls(
            arena=arena,
            write_slots=torch.from_numpy(np.concatenate(writes)),
            decodes=[_decode_bucket(bucket) for bucket in _buckets(decodes)],
            prefills=_prefill_chunks(others, first_row=len(decodes)),
        )

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, how: LayerAttention) -> Tensor:
        """As AttentionPlan has it."""
        cache = self.arena[:, layer]  # [slots, 2, Hkv, D]
        cache.index_copy_(0, self.write_slots, torch.stack((key[0], value[0])).permute(2, 0, 1, 3))
        out = query.new_empty(query.shape[2], query.shape[1], query.shape[3])
        for bucket in self.decodes:
            _attend_decodes(cache, query, bucket, how.scaling, out)
        for chunk in self.prefills:
            _attend_prefill(cache, query, key, value, chunk, how.scaling, out)
        return out.unsqueeze(0)


def _buckets(decodes: list[tuple[int, Scheduled]]) -> list[list[tuple[int, Scheduled]]]:
    buckets: list[list[tuple[int, Scheduled]]] = []
    limit = 0
    for row, entry in sorted(decodes, key=lambda item: -item[1].start):
        if not buckets or entry.start + 1 < limit:
            buckets.append([])
            limit = (entry.start + 1) // _BUCKET_RATIO if entry.start >= _BUCKET_MIN_TOKENS else 0
        buckets[-1].append((row, entry))
    return buckets


def _decode_bucket(bucket: list[tuple[int, Scheduled]]) -> DecodeBucket:
    lengths = np.asarray([entry.start + 1 for _, entry in bucket])
    longest = int(lengths.max())
    slots = np.empty((len(bucket), longest), dtype=np.int64)
    for index, (_, entry) in enumerate(bucket):
        length = entry.start + 1
        slots[index, :length] = entry.sequence.slots[:length]
        # Padding points at a slot of the sequence itself: masked, but its values must be finite.
        slots[index, length:] = entry.sequence.slots[0]
    mask = None
    if int(lengths.min()) < longest:
        padding = np.arange(longest)[None, :] >= lengths[:, None]
        mask = torch.zeros(padding.shape).masked_fill_(torch.from_numpy(padding), float("-inf"))
        mask = mask[:, None, None, :]
    rows = torch.tensor([row for row, _ in bucket])
    return DecodeBucket(rows=rows, slots=torch.from_numpy(slots), mask=mask)


def _prefill_chunks(batch: list[Scheduled], first_row: int) -> list[PrefillChunk]:
    chunks: list[PrefillChunk] = []
    row = first_row
    for entry in batch:
        history = mask = None
        if entry.start > 0:
            history = torch.from_numpy(entry.sequence.slots[: entry.start].copy())
            mask = torch.full((entry.count, entry.start + entry.count), float("-inf"))
            mask.triu_(diagonal=entry.start + 1)
        chunks.append(PrefillChunk(row, entry.count, history, mask))
        row += entry.count
    return chunks


def _attend_decodes(
    cache: Tensor, query: Tensor, bucket: DecodeBucket, scaling: float | None, out: Tensor
) -> None:
    batch, longest = bucket.slots.shape
    _, _, kv_heads, head_dim = cache.shape
    gathered = cache.index_select(0, bucket.slots.view(-1)).view(batch, longest, 2, kv_heads, head_dim)
    # Query heads that share a K/V head become rows of one small matrix: no repeat of K and V.
    grouped = query[0].index_select(1, bucket.rows).transpose(0, 1).reshape(batch, kv_heads, -1, head_dim)
    attended = F.scaled_dot_product_attention(
        grouped,
        gathered[:, :, 0].transpose(1, 2),
        gathered[:, :, 1].transpose(1, 2),
        attn_mask=bucket.mask,
        scale=scaling,
    )
    out.index_copy_(0, bucket.rows, attended.reshape(batch, -1, head_dim))


def _attend_prefill(
    cache: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    chunk: PrefillChunk,
    scaling: float | None,
    out: Tensor,
) -> None:
    rows = slice(chunk.start, chunk.start + chunk.count)
    keys, values = key[:, :, rows], value[:, :, rows]
    if chunk.history is not None:
        past = cache.index_select(0, chunk.history).permute(1, 2, 0, 3)  # [2, Hkv, H, D]
        keys = torch.cat((past[0].unsqueeze(0), keys), dim=2)
        values = torch.cat((past[1].unsqueeze(0), values), dim=2)
    attended = F.scaled_dot_product_attention(
        query[:, :, rows],
        keys,
        values,
        attn_mask=chunk.mask,
        is_causal=chunk.history is None,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    out[rows] = attended[0].transpose(0, 1)
