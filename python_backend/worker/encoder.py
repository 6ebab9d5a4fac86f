"""Runs an encoder model: texts -> unit-length sentence vectors (mean of the token vectors, as
sentence-transformers' all-MiniLM models are trained to be pooled)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from python_backend.buckets import split
from python_backend.worker.progress import call_at_each_module

FORWARD_COST_TOKENS = 48
"""What one more forward costs, in tokens of padding: a MiniLM forward takes about 7 ms for no token and 0.15 ms for
each on two busy cores, and both grow alike with the model."""


class BatchTokenizer(Protocol):
    """What is needed of `tokenizers.Tokenizer`."""

    def encode_batch(self, input: Any) -> list[Any]: ...


class EncoderRunner:
    def __init__(self, model: PreTrainedModel, tokenizer: BatchTokenizer, max_tokens: int) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens
        self.dim = int(model.config.hidden_size)

    def watch(self, on_call: Callable[[], None]) -> None:
        """`on_call` at every module's call."""
        call_at_each_module(self._model, on_call)

    def embed(self, texts: list[str]) -> tuple[Tensor, list[int], dict[int, str]]:
        """Returns vectors [len(texts), dim], tokens per text, and by index why a text was refused (row zero)."""
        ids = [list(encoding.ids) for encoding in self._tokenizer.encode_batch(texts)]
        errors = {
            index: f"the text has {len(tokens)} tokens, {self._max_tokens} fit the model's context"
            for index, tokens in enumerate(ids)
            if len(tokens) > self._max_tokens
        }
        vectors = torch.zeros(len(texts), self.dim)
        accepted = [index for index in range(len(texts)) if index not in errors]
        buckets = split([(len(ids[index]),) for index in accepted], FORWARD_COST_TOKENS)
        for bucket in buckets:
            rows = [accepted[i] for i in bucket]
            vectors[rows] = self._forward([ids[row] for row in rows]).to(vectors)
        return vectors, [len(tokens) for tokens in ids], errors

    @torch.inference_mode()
    def _forward(self, ids: list[list[int]]) -> Tensor:
        longest = max(len(tokens) for tokens in ids)
        padded = torch.zeros(len(ids), longest, dtype=torch.long)
        mask = torch.zeros(len(ids), longest, dtype=torch.long)
        for row, tokens in enumerate(ids):
            padded[row, : len(tokens)] = torch.tensor(tokens)
            mask[row, : len(tokens)] = 1
        is_ragged = any(len(tokens) < longest for tokens in ids)
        device = next(self._model.parameters()).device
        padded, mask = padded.to(device), mask.to(device)
        hidden: Tensor = self._model(
            input_ids=padded, attention_mask=mask if is_ragged else None
        ).last_hidden_state
        weights = mask.unsqueeze(-1).to(hidden.dtype)
        return F.normalize((hidden * weights).sum(dim=1) / weights.sum(dim=1), dim=-1)

    def warm_up(self) -> None:
        self.embed(["warm"])
        self.embed(["a text of some length, so that the larger kernels are chosen once"] * 8)
