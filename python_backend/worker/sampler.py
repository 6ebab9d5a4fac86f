"""Logits -> the next token of each sequence."""

from __future__ import annotations

import torch
from torch import Tensor

from contracts.sampling import SamplingParams

GREEDY_BELOW_TEMPERATURE = 1e-5
"""As in vLLM: dividing by less overflows float32, and nothing but the most likely token is left anyway."""


class Sampler:
    """Greedy for temperature 0, else temperature, top-k and top-p, with a generator per request."""

    def __init__(self) -> None:
        self._generators: dict[int, torch.Generator] = {}

    def add(self, request_id: int, params: SamplingParams) -> None:
        if params.temperature >= GREEDY_BELOW_TEMPERATURE:
            generator = torch.Generator()
            generator.seed() if params.seed is None else generator.manual_seed(params.seed)
            self._generators[request_id] = generator

    def remove(self, request_id: int) -> None:
        self._generators.pop(request_id, None)

    def sample(self, logits: Tensor, requests: list[tuple[int, SamplingParams]]) -> list[int | None]:
        """logits: [len(requests), vocabulary] -> one token each; None where the logits are not finite."""
        highest, greedy = logits.max(dim=-1)
        tokens: list[int | None] = [
            token if is_finite else None
            for token, is_finite in zip(greedy.tolist(), highest.isfinite().tolist(), strict=True)
        ]
        for row, (request_id, params) in enumerate(requests):
            if request_id in self._generators and tokens[row] is not None:
                # With the highest at 0 the division can only underflow.
                tokens[row] = _sample_one(logits[row] - highest[row], params, self._generators[request_id])
        return tokens


def _sample_one(logits: Tensor, params: SamplingParams, generator: torch.Generator) -> int:
    scaled = logits / params.temperature
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
