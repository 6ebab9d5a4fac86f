"""Runs a decoder model: one packed forward per step over the KV arena. The engine decides, this computes."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from contracts.sampling import SamplingParams
from python_backend.worker.attention import plan_attention
from python_backend.worker.forward_context import forward_with
from python_backend.worker.kv import KVCache, view_arena
from python_backend.worker.scheduler import Scheduled
from python_backend.worker.sequence import Sequence

_WARM_UP_BLOCKS = 4


class DecoderRunner:
    """`run(batch)` -> logits of the sequences that sample in this step."""

    def __init__(self, model: PreTrainedModel, cache: KVCache) -> None:
        self._model = model
        self._cache = cache

    @torch.inference_mode()
    def run(self, batch: list[Scheduled]) -> Tensor:
        """Compute the batch's tokens into the cache. Returns [number of entries that sample, vocabulary]."""
        ids = [
            token
            for entry in batch
            for token in entry.sequence.tokens[entry.start : entry.start + entry.count]
        ]
        positions = [entry.start + i for entry in batch for i in range(entry.count)]
        last_rows, row = [], -1
        for entry in batch:
            row += entry.count
            if entry.samples:
                last_rows.append(row)
        device = self._cache.device
        with forward_with(plan_attention(self._cache, batch)):
            logits: Tensor = self._model(
                input_ids=torch.tensor([ids], device=device),
                position_ids=torch.tensor([positions], device=device),
                use_cache=False,
                logits_to_keep=torch.tensor(last_rows, dtype=torch.long, device=device),
            ).logits
        return logits[0].to(torch.promote_types(logits.dtype, torch.float32))

    def warm_up(self) -> None:
        """Prefill and decode once in memory of its own, so that the first request pays for nothing."""
        layout = self._cache.layout
        raw = torch.zeros(_WARM_UP_BLOCKS * layout.block_bytes, dtype=torch.uint8, device=self._cache.device)
        runner = DecoderRunner(self._model, view_arena(raw, layout))
        slots = np.arange(_WARM_UP_BLOCKS * layout.block_tokens)
        sequence = Sequence(0, list(range(33)), 33, SamplingParams(), slots=slots)
        runner.run([Scheduled(sequence, 0, 32)])
        runner.run([Scheduled(sequence, 32, 1)])
