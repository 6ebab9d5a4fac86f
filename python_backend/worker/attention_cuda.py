"""Attention on a GPU: over pages by a varlen flash kernel, or over padded gathers by SDPA.

`PagedPlan` is one kernel call a layer for decodes and chunks together, reading the cache where it lies: a layer's K
and V are strided views of the token-major arena, and a block is a page. `PaddedPlan` gathers: decodes in one batch
padded to the longest, chunks one by one; it needs nothing but SDPA and runs on any device.

All index tensors of a step travel in one copy from pinned memory. `DecodeIndex` alone can be static, so that a step
that only decodes can be captured as a graph (`cuda_graphs`).
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from python_backend.worker.kv import KVCache
from python_backend.worker.layer_attention import LayerAttention, attention_of

if TYPE_CHECKING:  # the GPU checks run where msgspec is not installed
    from python_backend.worker.scheduler import Scheduled

Indices = npt.NDArray[np.int64]
MAX_GATHERED_KEYS = 64 * 4096
"""Of decodes at once: 1 GB for a layer with 8 heads of 128 in bf16."""


def stage(arrays: SequenceOf[Indices], device: torch.device) -> list[Tensor]:
    """Arrays of any shapes -> int64 tensors on the device, by one copy that the CPU does not wait for."""
    flat = np.concatenate([array.reshape(-1) for array in arrays])
    host = torch.from_numpy(flat)
    # torch keeps a pinned buffer until the copy from it is done.
    on_device = host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host
    parts = torch.split(on_device, [array.size for array in arrays])
    return [part.view(array.shape) for part, array in zip(parts, arrays, strict=True)]


@dataclass(frozen=True)
class DecodeIndex:
    """Where the sequences of a decode step lie; every tensor may be static."""

    write_slots: Tensor
    """[B]: of the token that is computed."""
    lengths: Tensor
    """[B]: tokens up to and with it."""
    table: Tensor
    """[B, n]: the sequence's pages (paged) or slots (padded); what is beyond its length repeats its first."""
    max_tokens: int
    """No length is greater."""


def decode_arrays(
    batch: list[Scheduled], page_tokens: int, width: int | None = None
) -> tuple[Indices, Indices, Indices]:
    """write_slots, lengths and table of sequences that compute one token each. `page_tokens`: 1 makes a table of
    slots. `width`: columns of the table, at least what the longest needs (None: just that)."""
    lengths = np.asarray([entry.start + entry.count for entry in batch], dtype=np.int64)
    writes = np.asarray([entry.sequence.slots[entry.start] for entry in batch], dtype=np.int64)
    return writes, lengths, page_table(batch, page_tokens, width)


def page_table(batch: list[Scheduled], page_tokens: int, width: int | None = None) -> Indices:
    """[entries, width]: the pages of each entry's tokens, from its slots."""
    pages = [
        entry.sequence.slots[: entry.start + entry.count : page_tokens] // page_tokens for entry in batch
    ]
    table = np.empty((len(batch), width or max(map(len, pages))), dtype=np.int64)
    for row, own in zip(table, pages, strict=True):
        row[: len(own)] = own
        row[len(own) :] = own[0]
    return table


def _write_slots(batch: list[Scheduled]) -> Indices:
    slots = [entry.sequence.slots[entry.start : entry.start + entry.count] for entry in batch]
    packed: Indices = np.concatenate(slots).astype(np.int64, copy=False)
    return packed


@dataclass(frozen=True)
class PaddedChunk:
    """Rows start .. start + count of the packed input, on top of `num_keys - count` older tokens."""

    start: int
    count: int
    keys: Tensor
    """Slots [num_keys]."""


@dataclass(frozen=True)
class PaddedPlan:
    """One step by gathers and SDPA."""

    cache: KVCache
    write_slots: Tensor
    decodes: DecodeIndex | None
    chunks: list[PaddedChunk]
    _masks: dict[Any, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, cache: KVCache, batch: list[Scheduled]) -> PaddedPlan:
        """`batch`: decodes first."""
        decoding = [entry for entry in batch if entry.is_decode]
        others = batch[len(decoding) :]
        arrays: list[Indices] = [_write_slots(batch)]
        if decoding:
            arrays += decode_arrays(decoding, page_tokens=1)
        arrays += [
            entry.sequence.slots[: entry.start + entry.count].astype(np.int64, copy=False) for entry in others
        ]
        staged = stage(arrays, cache.device)
        write_slots, rest = staged[0], staged[1:]
        decodes = None
        if decoding:
            longest = max(entry.start + entry.count for entry in decoding)
            decodes, rest = DecodeIndex(rest[0], rest[1], rest[2], longest), rest[3:]
        row, chunks = len(decoding), []
        for entry, keys in zip(others, rest, strict=True):
            chunks.append(PaddedChunk(row, entry.count, keys))
            row += entry.count
        return cls(cache, write_slots, decodes, chunks)

    @classmethod
    def of_decodes(cls, cache: KVCache, index: DecodeIndex) -> PaddedPlan:
        return cls(cache, index.write_slots, index, [])

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, how: LayerAttention) -> Tensor:
        """As AttentionPlan has it."""
        self.cache.write(layer, self.write_slots, key[0], value[0])
        parts = []
        if self.decodes is not None:
            parts += self._attend_decodes(layer, query[0], self.decodes, how)
        for chunk in self.chunks:
            rows = query[0, :, chunk.start : chunk.start + chunk.count]
            parts.append(self._attend_chunk(layer, rows, chunk, how))
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).unsqueeze(0)

    def _attend_decodes(
        self, layer: int, query: Tensor, index: DecodeIndex, how: LayerAttention
    ) -> list[Tensor]:
        """query [Hq, T, D], whose first B rows are the decodes -> parts that make [B, Hq, D]."""
        batch, longest = index.table.shape
        mask = self._decode_mask(index, how.sliding_window, query.dtype)
        at_once = max(1, MAX_GATHERED_KEYS // longest)
        parts = []
        for first in range(0, batch, at_once):
            rows = slice(first, min(first + at_once, batch))
            cached = self.cache.read(layer, index.table[rows].reshape(-1), query.dtype)
            cached = cached.view(-1, longest, *cached.shape[1:])  # [B, L, 2, Hkv, D]
            kv_heads, head_dim = cached.shape[3:]
            # Query heads that share a K/V head become rows of one small matrix: no repeat of K and V.
            grouped = query[:, rows].transpose(0, 1).reshape(cached.shape[0], kv_heads, -1, head_dim)
            keys, values = cached[:, :, 0].transpose(1, 2), cached[:, :, 1].transpose(1, 2)
            attended = attention_of(grouped, keys, values, how, mask=mask[rows])
            parts.append(attended.reshape(cached.shape[0], -1, head_dim))
        return parts

    def _decode_mask(self, index: DecodeIndex, window: int | None, dtype: torch.dtype) -> Tensor:
        """[B, 1, 1, L], additive."""
        at = ("decodes", window, dtype)
        if at not in self._masks:
            places = torch.arange(index.table.shape[1], device=index.table.device)[None, :]
            hidden = places >= index.lengths[:, None]
            if window is not None:
                hidden = hidden | (places < index.lengths[:, None] - window)
            self._masks[at] = _additive(hidden, dtype)[:, None, None, :]
        return self._masks[at]

    def _attend_chunk(self, layer: int, query: Tensor, chunk: PaddedChunk, how: LayerAttention) -> Tensor:
        """query [Hq, T, D] -> [T, Hq, D]"""
        cached = self.cache.read(layer, chunk.keys, query.dtype).permute(1, 2, 0, 3)  # [2, Hkv, L, D]
        kv_heads, _, head_dim = cached.shape[1:]
        heads = query.shape[0]
        grouped = query.reshape(1, kv_heads, heads // kv_heads * chunk.count, head_dim)
        mask = self._chunk_mask(chunk, how.sliding_window, query.dtype).repeat(heads // kv_heads, 1)
        attended = attention_of(grouped, cached[0].unsqueeze(0), cached[1].unsqueeze(0), how, mask=mask)
        return attended.reshape(heads, chunk.count, head_dim).transpose(0, 1)

    def _chunk_mask(self, chunk: PaddedChunk, window: int | None, dtype: torch.dtype) -> Tensor:
        """[T, L], additive; the last query sees the last key."""
        at = (chunk.start, window, dtype)
        if at not in self._masks:
            num_keys = chunk.keys.shape[0]
            keys = torch.arange(num_keys, device=chunk.keys.device)[None, :]
            queries = torch.arange(num_keys - chunk.count, num_keys, device=chunk.keys.device)[:, None]
            hidden = keys > queries
            if window is not None:
                hidden = hidden | (keys <= queries - window)
            self._masks[at] = _additive(hidden, dtype)
        return self._masks[at]


@dataclass(frozen=True)
class PagedPlan:
    """One step by one flash kernel a layer. What the kernel cannot do (softcaps) goes to a padded plan."""

    cache: KVCache
    write_slots: Tensor
    query_starts: Tensor
    """[N + 1], int32."""
    key_starts: Tensor | None
    """[N + 1], int32, as FlashAttention 2 checks it; None for version 3, which wants none beside a table."""
    lengths: Tensor
    """[N], int32."""
    table: Tensor
    """[N, pages], int32."""
    max_queries: int
    max_keys: int
    batch: list[Scheduled] | None
    """None: static tensors, nothing to fall back on."""
    _fallback: list[PaddedPlan] = field(default_factory=list)

    @classmethod
    def of(cls, cache: KVCache, batch: list[Scheduled], flash_version: int = 2) -> PagedPlan:
        """`batch`: decodes first, though the order does not matter here."""
        counts = np.asarray([entry.count for entry in batch], dtype=np.int64)
        lengths = np.asarray([entry.start + entry.count for entry in batch], dtype=np.int64)
        table = page_table(batch, cache.layout.block_tokens)
        starts = [np.concatenate(([0], np.cumsum(each))) for each in (counts, lengths)]
        writes, query_starts, key_starts, lengths_there, table_there = stage(
            [_write_slots(batch), *starts, lengths, table], cache.device
        )
        return cls(
            cache,
            writes,
            query_starts.int(),
            key_starts.int() if flash_version < 3 else None,
            lengths_there.int(),
            table_there.int(),
            int(counts.max()),
            int(lengths.max()),
            batch,
        )

    @classmethod
    def of_decodes(cls, cache: KVCache, index: DecodeIndex, flash_version: int = 2) -> PagedPlan:
        """Of static tensors; everything derived is computed from them on the device, as a graph then does."""
        num = index.lengths.shape[0]
        lengths = index.lengths.int()
        query_starts = torch.arange(num + 1, dtype=torch.int32, device=cache.device)
        key_starts = torch.zeros_like(query_starts)
        torch.cumsum(lengths, 0, dtype=torch.int32, out=key_starts[1:])
        return cls(
            cache,
            index.write_slots,
            query_starts,
            key_starts if flash_version < 3 else None,
            lengths,
            index.table.int(),
            1,
            index.max_tokens,
            None,
        )

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, how: LayerAttention) -> Tensor:
        """As AttentionPlan has it."""
        if how.softcap is not None or query.dtype != self.cache.layout.dtype:
            return self._padded().attend(layer, query, key, value, how)
        self.cache.write(layer, self.write_slots, key[0], value[0])
        layer_rows = self.cache.rows[:, layer]
        pages = layer_rows.view(-1, self.cache.layout.block_tokens, *layer_rows.shape[1:])
        window = (-1 if how.sliding_window is None else how.sliding_window - 1, 0)
        attended = varlen(
            query[0].transpose(0, 1),
            pages[:, :, 0],
            pages[:, :, 1],
            self.query_starts,
            self.key_starts,
            self.max_queries,
            self.max_keys,
            scale=how.scaling,
            window_size=window,
            enable_gqa=query.shape[1] != key.shape[1],
            seqused_k=self.lengths,
            block_table=self.table,
        )
        return attended.unsqueeze(0)

    def _padded(self) -> PaddedPlan:
        if self.batch is None:
            raise NotImplementedError(
                "this layer cannot be captured: no flash kernel has its softcap or type"
            )
        if not self._fallback:
            self._fallback.append(PaddedPlan.of(self.cache, self.batch))
        return self._fallback[0]


def varlen(*arguments: Any, **options: Any) -> Tensor:
    """torch's varlen_attn; a seam for tests, since it has no CPU kernel."""
    from torch.nn.attention.varlen import varlen_attn

    return cast(Tensor, varlen_attn(*arguments, **options))


class CudaPlan:
    """`attention.plan_attention` on a GPU, without a word about the backend: what runs everywhere."""

    @staticmethod
    def of(cache: KVCache, batch: list[Scheduled]) -> PaddedPlan:
        return PaddedPlan.of(cache, batch)


def _additive(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, float("-inf"))
