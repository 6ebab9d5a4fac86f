"""Runs a decoder model: one packed forward per step over the KV arena. The engine decides, this computes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from contracts.sampling import SamplingParams
from python_backend.worker.attention import plan_attention
from python_backend.worker.scheduler import Scheduled
from python_backend.worker.sequence import Sequence

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
