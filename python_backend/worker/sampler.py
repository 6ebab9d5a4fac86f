"""Logits -> the next token of each sequence."""

from __future__ import annotations

import torch
from torch import Tensor

from contracts.sampling import SamplingParams


class Sampler:
    """Greedy for temperature 0, else temperature, top-k and top-p, with a generator per seeded request."""

    def __init__(self) -> None:
        self._generators: dict[int, torch.Generator] = {}

    def add(self, request_id: int, params: SamplingParams) -> None:
        if params.temperature > 0:
            generator = torch.Generator()
            generator.seed() if params.seed is None else generator.manual_seed(params.seed)
            self._generators[request_id] = generator

    def remove(self, request_id: int) -> None:
        self._generators.pop(request_id, None)

    def sample(self, logits: Tensor, requests: list[tuple[int, SamplingParams]]) -> list[int]:
        """logits: [len(requests), vocabulary] -> one token each."""
        tokens: list[int] = logits.argmax(dim=-1).tolist()
        for row, (request_id, params) in enumerate(requests):
            if params.temperature > 0:
                tokens[row] = _sample_one(logits[row], params, self._generators[request_id])
        return tokens


def _sample_one(logits: Tensor, params: SamplingParams, generator: torch.Generator) -> int:
    scaled = logits.float() / params.temperature
    if 0 < params.top_k < scaled.numel():
        kth = scaled.topk(params.top_k).values[-1]
        scaled = scaled.masked_fill(scaled < kth, float("-inf"))
    probs = scaled.softmax(dim=-1)
    if params.top_p < 1.0:
        ordered, index = probs.sort(descending=True)
        # A token stays when what comes before it is short of top_p, so the most likely one always stays.
        dropped = ordered.cumsum(dim=-1) - ordered >= params.top_p
        probs = probs.scatter(0, index[dropped], 0.0)
    return int(torch.multinomial(probs, 1, generator=generator))
