"""Runs a decoder model: one packed forward per step over the KV arena. The engine decides, this computes."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from contracts.sampling import SamplingParams
from python_backend.worker.attention import plan_attention
from python_backend.worker.kv import KVLayout
from python_backend.worker.scheduler import Scheduled
from python_backend.worker.sequence import Sequence


class DecoderRunner:
    """`run(batch)` -> logits of the sequences that sample in this step."""

    def __init__(self, model: PreTrainedModel, arena: Tensor) -> None:
        self._model = model
        self._arena = arena

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
        logits: Tensor = self._model(
            input_ids=torch.tensor([ids]),
            position_ids=torch.tensor([positions]),
            use_cache=False,
            kv_plan=plan_attention(self._arena, batch),
            logits_to_keep=torch.tensor(last_rows, dtype=torch.long),
        ).logits
        return logits[0]

    def warm_up(self, layout: KVLayout) -> None:
        """Prefill and decode once in memory of its own, so that the first request pays for nothing."""
        runner = DecoderRunner(self._model, torch.zeros(64, *layout.token_shape))
        sequence = Sequence(0, list(range(33)), 33, SamplingParams(), slots=np.arange(64))
        runner.run([Scheduled(sequence, 0, 32)])
        runner.run([Scheduled(sequence, 32, 1)])
