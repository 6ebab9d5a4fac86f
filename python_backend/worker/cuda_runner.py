"""Runs a decoder on a GPU: graphs for steps that only decode, one packed forward for the others.

`run` returns when the GPU is through with the step. So what follows holds without further care: blocks that are
published have been written, blocks that are given back are not in use.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from python_backend.worker.attention_cuda import PaddedPlan, PagedPlan, stage
from python_backend.worker.cuda_backends import Backend
from python_backend.worker.cuda_graphs import (
    Capture,
    CudaCapture,
    DecodeGraph,
    DecodeInputs,
    GraphLadder,
    GraphShape,
    capture_all,
)
from python_backend.worker.forward_context import forward_with
from python_backend.worker.kv import KVCache, view_arena

if TYPE_CHECKING:  # the GPU checks run where msgspec is not installed
    from python_backend.worker.scheduler import Scheduled

log = logging.getLogger(__name__)

PROOF_TOKENS = 300
"""More than one page of the largest size."""
PROOF_TOLERANCE = 0.06
"""Of bf16 attention outputs near 1: a wrong page is off by ten times that."""


@dataclass(frozen=True)
class _Tokens:
    """As much of a Sequence as a forward needs, for warming up."""

    tokens: list[int]
    slots: np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class _Entry:
    """As much of a Scheduled."""

    sequence: _Tokens
    start: int
    count: int
    samples: bool = True

    @property
    def is_decode(self) -> bool:
        return self.start > 0 and self.count == 1


class CudaRunner:
    """`run(batch)` -> logits of the sequences that sample in this step, on the GPU."""

    def __init__(
        self,
        model: Callable[..., Any],
        cache: KVCache,
        backend: Backend,
        max_context_tokens: int,
        synchronize: Callable[[], None],
        capture: Capture | None = None,
        num_seqs: tuple[int, ...] | None = None,
    ) -> None:
        """`model`: a transformers decoder that attends through `attention.attend`. `num_seqs`: the batch sizes
        that get graphs (None: all of cuda_graphs.NUM_SEQS; (): no graphs)."""
        self._model, self._cache = model, cache
        self._backend = backend
        self._synchronize = synchronize
        self._capture = capture or CudaCapture()
        self._max_context_tokens = max_context_tokens
        self._num_seqs = num_seqs
        self._graphs: dict[GraphShape, DecodeGraph] = {}
        self._ladder = self._new_ladder()

    @property
    def backend(self) -> Backend:
        """After `warm_up` what was proven to work."""
        return self._backend

    @property
    def num_graphs(self) -> int:
        return len(self._graphs)

    @torch.inference_mode()
    def run(self, batch: list[Scheduled]) -> Tensor:
        """Compute the batch's tokens into the cache. Returns [number of entries that sample, vocabulary]."""
        graph = self._graph_for(batch)
        logits = graph.run(batch, self._page_tokens) if graph else self._run_packed(self._cache, batch)
        self._synchronize()
        return logits

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Prove the backend, run every shape once in memory of its own, then capture over the arena."""
        if self._backend.name == "varlen" and (failure := self._proof_failure()):
            log.warning("paged attention does not work here, using padded: %s", failure)
            self._backend = replace(self._backend, name="padded", reason=failure)
            self._ladder = self._new_ladder()
        own = self._own_cache(3 * PROOF_TOKENS)
        tokens = _Tokens(list(range(1, 34)), np.arange(own.rows.shape[0]))
        self._run_packed(own, [_Entry(tokens, 0, 32)])  # type: ignore[list-item]
        self._run_packed(own, [_Entry(tokens, 32, 1)])  # type: ignore[list-item]
        self._synchronize()
        self._warm_decodes(own)
        self._graphs = capture_all(
            self._ladder.shapes(), self._page_tokens, self._cache.device, self._forward_static, self._capture
        )
        self._synchronize()

    # --- within ---

    @property
    def _page_tokens(self) -> int:
        """Tokens in an entry of a decode table."""
        return 1 if self._backend.name == "padded" else self._cache.layout.block_tokens

    def _new_ladder(self) -> GraphLadder:
        ladder = GraphLadder(self._max_context_tokens, self._backend.name != "padded")
        return ladder if self._num_seqs is None else replace(ladder, num_seqs=self._num_seqs)

    def _graph_for(self, batch: list[Scheduled]) -> DecodeGraph | None:
        if not self._graphs or not all(entry.is_decode and entry.samples for entry in batch):
            return None
        longest = max(entry.start + 1 for entry in batch)
        shape = self._ladder.choose(len(batch), longest)
        return self._graphs.get(shape) if shape else None

    def _run_packed(self, cache: KVCache, batch: list[Scheduled]) -> Tensor:
        ids = [entry.sequence.tokens[entry.start : entry.start + entry.count] for entry in batch]
        positions = [np.arange(entry.start, entry.start + entry.count) for entry in batch]
        ends = np.cumsum([entry.count for entry in batch]) - 1
        sampled = ends[[entry.samples for entry in batch]]
        packed_ids = np.concatenate([np.asarray(each, dtype=np.int64) for each in ids])
        ids_there, positions_there, sampled_there = stage(
            [packed_ids, np.concatenate(positions), sampled.astype(np.int64)], cache.device
        )
        return self._forward(self._plan(cache, batch), ids_there, positions_there, sampled_there)

    def _plan(self, cache: KVCache, batch: list[Scheduled]) -> PaddedPlan | PagedPlan:
        if self._backend.name == "padded":
            return PaddedPlan.of(cache, batch)
        return PagedPlan.of(cache, batch, self._backend.flash_version)

    def _forward_static(self, inputs: DecodeInputs, cache: KVCache | None = None) -> Tensor:
        """A decode step of static inputs, all rows' logits."""
        cache, index = cache or self._cache, inputs.index()
        plan: PaddedPlan | PagedPlan
        if self._backend.name == "padded":
            plan = PaddedPlan.of_decodes(cache, index)
        else:
            plan = PagedPlan.of_decodes(cache, index, self._backend.flash_version)
        return self._forward(plan, inputs.ids, inputs.positions, 0)

    def _forward(
        self, plan: PaddedPlan | PagedPlan, ids: Tensor, positions: Tensor, keep: Tensor | int
    ) -> Tensor:
        with forward_with(plan):
            logits: Tensor = self._model(
                input_ids=ids.unsqueeze(0),
                position_ids=positions.unsqueeze(0),
                use_cache=False,
                logits_to_keep=keep,
            ).logits
        return logits[0].to(torch.promote_types(logits.dtype, torch.float32))

    def _own_cache(self, num_tokens: int) -> KVCache:
        layout = self._cache.layout
        num_blocks = -(-num_tokens // layout.block_tokens)
        raw = torch.zeros(num_blocks * layout.block_bytes, dtype=torch.uint8, device=self._cache.device)
        return view_arena(raw, layout)

    def _warm_decodes(self, own: KVCache) -> None:
        """Kernels are chosen and loaded by shape, and neither may happen while a graph is captured."""
        slots = np.arange(own.rows.shape[0])
        tokens = _Tokens([1] * len(slots), slots)
        for shape in self._ladder.shapes():
            inputs = DecodeInputs.of(shape, self._page_tokens, own.device)
            inputs.fill([_Entry(tokens, 1, 1)], self._page_tokens)  # type: ignore[list-item]
            self._forward_static(inputs, own)
        self._synchronize()

    def _proof_failure(self) -> str:
        """Why paged attention cannot be used: it raises, or says something else than padded; "" when it can."""
        try:
            worst = self._proof_difference()
        except (RuntimeError, ValueError, TypeError) as exc:  # what torch raises for a kernel it has not
            return f"{type(exc).__name__}: {exc}"[:300]
        return "" if worst <= PROOF_TOLERANCE else f"it differs from padded attention by {worst:.3f}"

    def _proof_difference(self) -> float:
        """Chunk and decode over pages out of order, in random numbers."""
        from python_backend.worker.layer_attention import LayerAttention

        own, layout = self._own_cache(3 * PROOF_TOKENS), self._cache.layout
        generator = torch.Generator().manual_seed(1)
        blocks = np.arange(own.num_blocks)[::-1]
        slots = (blocks[:, None] * layout.block_tokens + np.arange(layout.block_tokens)).reshape(-1)
        tokens = _Tokens([1] * len(slots), slots)
        worst = 0.0
        for start, count in ((0, PROOF_TOKENS), (PROOF_TOKENS, 17), (PROOF_TOKENS + 17, 1)):
            entries: Any = [_Entry(tokens, start, count)]
            shape = (1, layout.num_kv_heads, count, layout.head_dim)
            query, key, value = (
                torch.randn(shape, generator=generator).to(own.device, layout.dtype) for _ in range(3)
            )
            made = [
                plan.attend(0, query, key, value, LayerAttention())
                for plan in (
                    PagedPlan.of(own, entries, self._backend.flash_version),
                    PaddedPlan.of(own, entries),
                )
            ]
            worst = max(worst, float((made[0] - made[1]).abs().max()))
        return worst
