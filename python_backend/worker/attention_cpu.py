"""Attention on CPU: per-sequence prefill, decodes batched by length.

The cache is token-major, `[slots, layers, 2, kv_heads, row]`. One `index_select` on slots gathers K and V of a
layer together, and the gathered tensor is a valid (strided) operand for SDPA, so nothing is copied twice.
Measured against layer-major blocks at batch 16: 211 against 204 tokens/s, at 64: 396 against 312 (SmolLM2-135M,
two threads). A decode that is alone in its bucket and whose slots lie side by side is not copied at all: 0.20
against 0.39 ms a layer at 2048 tokens, 0.04 against 0.09 at 512.

Prefill with a history keeps its [count, H + count] mask, made once per step: 17.6 ms a layer for 512 tokens over
2048. `causal_lower_right` takes 20.4 (it is made anew in every layer), two calls joined by their log-sum-exps 15.3,
too little gain for the private operator that they need.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from python_backend.worker.kv import KVCache
from python_backend.worker.layer_attention import LayerAttention, attention_of

if TYPE_CHECKING:  # as in `attention`
    from python_backend.worker.scheduler import Scheduled

_BUCKET_RATIO = 1.5
"""Decodes are padded to the longest of their bucket, which holds none shorter than longest / ratio. Milliseconds a
layer with 64 lengths from 30 to 1200 at 1.25 / 1.5 / 2 / 3: 10.0 / 9.4 / 10.3 / 31.9; with 16: 2.1 / 2.1 / 2.4 /
2.4 (two threads of a busy machine, best of 12, in turns)."""
_BUCKET_MIN_TOKENS = 64
"""Below this length padding is cheaper than another kernel call."""

Slots = npt.NDArray[np.int64]


@dataclass(frozen=True)
class DecodeBucket:
    """Decodes of similar length. rows: [B] packed positions; mask: [B, 1, 1, L], additive, or None."""

    rows: Tensor
    keys: Tensor | slice
    """Where their keys lie: slots [B * L], or the run of slots of a single one."""
    mask: Tensor | None


@dataclass(frozen=True)
class PrefillChunk:
    """Tokens start .. start + count of the packed input."""

    start: int
    count: int
    keys: Tensor | slice | None
    """Where the keys that they see lie, their own included, which come last. None: their own alone, and the cache
    holds them exactly as they are."""
    mask: Tensor | None
    """[count, L], additive; None: plain causal over their own."""


@dataclass(frozen=True)
class _Reach:
    """Which keys are seen with one sliding window."""

    decodes: list[DecodeBucket]
    prefills: list[PrefillChunk]


@dataclass(frozen=True)
class CpuPlan:
    """One step's attention: the cache and where everything lies in it."""

    cache: KVCache
    batch: list[Scheduled]
    write_slots: Tensor
    """[T]: where the packed tokens' K and V go."""
    _reaches: dict[int | None, _Reach] = field(default_factory=dict)

    @classmethod
    def of(cls, cache: KVCache, batch: list[Scheduled]) -> CpuPlan:
        """`batch`: decodes first, as the packed input has them."""
        writes = [entry.sequence.slots[entry.start : entry.start + entry.count] for entry in batch]
        return cls(cache, batch, torch.from_numpy(np.concatenate(writes)))

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, how: LayerAttention) -> Tensor:
        """As AttentionPlan has it."""
        self.cache.write(layer, self.write_slots, key[0], value[0])
        out = query.new_empty(query.shape[2], query.shape[1], query.shape[3])
        reach = self._reach(how.sliding_window, query.dtype)
        for bucket in reach.decodes:
            self._attend_decodes(layer, query, bucket, how, out)
        for chunk in reach.prefills:
            self._attend_prefill(layer, (query, key, value), chunk, how, out)
        return out.unsqueeze(0)

    def _reach(self, window: int | None, dtype: torch.dtype) -> _Reach:
        if window is not None and window >= max(entry.start + entry.count for entry in self.batch):
            window = None
        if window not in self._reaches:
            decodes = [(row, entry) for row, entry in enumerate(self.batch) if entry.is_decode]
            others = self.batch[len(decodes) :]
            self._reaches[window] = _Reach(
                [_decode_bucket(bucket, window, dtype) for bucket in _buckets(decodes, window)],
                _prefill_chunks(others, len(decodes), window, dtype, self.cache.layout.dtype == dtype),
            )
        return self._reaches[window]

    def _attend_decodes(
        self, layer: int, query: Tensor, bucket: DecodeBucket, how: LayerAttention, out: Tensor
    ) -> None:
        batch = bucket.rows.shape[0]
        cached = self.cache.read(layer, bucket.keys, query.dtype)  # [B * L, 2, Hkv, D]
        cached = cached.view(batch, -1, *cached.shape[1:])
        _, _, _, kv_heads, head_dim = cached.shape
        # Query heads that share a K/V head become rows of one small matrix: no repeat of K and V.
        grouped = query[0].index_select(1, bucket.rows).transpose(0, 1).reshape(batch, kv_heads, -1, head_dim)
        keys, values = cached[:, :, 0].transpose(1, 2), cached[:, :, 1].transpose(1, 2)
        attended = attention_of(grouped, keys, values, how, mask=bucket.mask)
        out.index_copy_(0, bucket.rows, attended.reshape(batch, -1, head_dim))

    def _attend_prefill(
        self,
        layer: int,
        packed: tuple[Tensor, Tensor, Tensor],
        chunk: PrefillChunk,
        how: LayerAttention,
        out: Tensor,
    ) -> None:
        rows = slice(chunk.start, chunk.start + chunk.count)
        query, keys, values = (tensor[:, :, rows] for tensor in packed)
        if chunk.keys is not None:
            cached = self.cache.read(layer, chunk.keys, query.dtype).permute(1, 2, 0, 3)  # [2, Hkv, L, D]
            keys, values = cached[0].unsqueeze(0), cached[1].unsqueeze(0)
        attended = attention_of(query, keys, values, how, mask=chunk.mask, is_causal=chunk.mask is None)
        out[rows] = attended[0].transpose(0, 1)


def _reached(entry: Scheduled, window: int | None) -> Slots:
    """Slots of the keys that the entry's first token sees, and of those up to its last token."""
    end = entry.start + entry.count
    first = 0 if window is None else max(0, entry.start + 1 - window)
    return entry.sequence.slots[first:end]


def _where(slots: Slots) -> Tensor | slice:
    """A run of neighbours as a slice, which needs no copy; else the slots."""
    first, last = int(slots[0]), int(slots[-1])
    if last - first == len(slots) - 1 and bool((np.diff(slots) == 1).all()):
        return slice(first, last + 1)
    return torch.from_numpy(slots)


def _buckets(decodes: list[tuple[int, Scheduled]], window: int | None) -> list[list[tuple[int, Scheduled]]]:
    """Longest first; a new bucket where a length falls under the ratio."""
    buckets: list[list[tuple[int, Scheduled]]] = []
    limit = 0
    for row, entry in sorted(decodes, key=lambda item: -item[1].start):
        length = len(_reached(entry, window))
        if not buckets or length < limit:
            buckets.append([])
            limit = int(length / _BUCKET_RATIO) if length > _BUCKET_MIN_TOKENS else 0
        buckets[-1].append((row, entry))
    return buckets


def _decode_bucket(
    bucket: list[tuple[int, Scheduled]], window: int | None, dtype: torch.dtype
) -> DecodeBucket:
    rows = torch.tensor([row for row, _ in bucket])
    reached = [_reached(entry, window) for _, entry in bucket]
    if len(bucket) == 1:
        return DecodeBucket(rows, _where(reached[0]), None)
    lengths = np.asarray([len(slots) for slots in reached])
    longest = int(lengths.max())
    table = np.empty((len(bucket), longest), dtype=np.int64)
    for row, slots in zip(table, reached, strict=True):
        row[: len(slots)] = slots
        # Padding points at a slot of the sequence itself: masked, but its values must be finite.
        row[len(slots) :] = slots[0]
    mask = None
    if int(lengths.min()) < longest:
        mask = _additive(np.arange(longest)[None, :] >= lengths[:, None], dtype)[:, None, None, :]
    return DecodeBucket(rows, torch.from_numpy(table.reshape(-1)), mask)


def _prefill_chunks(
    batch: list[Scheduled], first_row: int, window: int | None, dtype: torch.dtype, is_exact: bool
) -> list[PrefillChunk]:
    chunks: list[PrefillChunk] = []
    row = first_row
    for entry in batch:
        keys = mask = None
        if entry.start > 0 or window is not None:
            mask = _additive(_hidden(entry, window), dtype)
        # What a cache of lower precision holds is what every token sees, however the prompt was cut.
        if entry.start > 0 or not is_exact:
            keys = _where(_reached(entry, window))
        chunks.append(PrefillChunk(row, entry.count, keys, mask))
        row += entry.count
    return chunks


def _hidden(entry: Scheduled, window: int | None) -> npt.NDArray[np.bool_]:
    """[count, L]: True where the key is later than the query or before its window."""
    end = entry.start + entry.count
    queries = np.arange(entry.start, end)[:, None]
    keys = np.arange(end - len(_reached(entry, window)), end)[None, :]
    hidden: npt.NDArray[np.bool_] = keys > queries
    return hidden if window is None else hidden | (keys <= queries - window)


def _additive(hidden: npt.NDArray[np.bool_], dtype: torch.dtype) -> Tensor:
    """Of the queries' own type: torch 2.13 reads a float32 mask wrongly beside float64 queries from 16 keys on."""
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(torch.from_numpy(hidden), float("-inf"))
