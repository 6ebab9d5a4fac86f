"""What a request's settings do to its logits before one is chosen. Rows are float32 on the CPU, changed in place.

The order is vLLM's: bias, penalties, what must not come (too early an end, what the guide forbids); then, for
drawn tokens, temperature, min_p, top_k, top_p.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import torch
from torch import Tensor

from contracts.sampling import SamplingParams

NEVER = float("-inf")
NUM_LIKELY = 1024


class Shaping:
    """One request's bias, penalties and earliest end. Follows `tokens`, prompt and output, as they grow."""

    def __init__(self, params: SamplingParams, prompt: list[int], eos_token_ids: Iterable[int]) -> None:
        self._params = params
        self._bias_ids = _ids(token_id for token_id, _ in params.logit_bias)
        self._biases = torch.tensor([bias for _, bias in params.logit_bias])
        self._ends = _ids({*eos_token_ids, *params.stop_token_ids})
        self._counts: Counter[int] = Counter()
        self._num_counted = len(prompt)
        self._prompt = frozenset(prompt) if params.repetition_penalty != 1.0 else frozenset()
        self._prompt_ids = _ids(self._prompt)

    @staticmethod
    def is_needed(params: SamplingParams) -> bool:
        return bool(
            params.logit_bias
            or params.presence_penalty
            or params.frequency_penalty
            or params.repetition_penalty != 1.0
            or params.min_tokens
        )

    def apply(self, row: Tensor, tokens: list[int], num_output_tokens: int) -> None:
        """row: [vocabulary]."""
        params = self._params
        if len(self._bias_ids):
            row[self._bias_ids] += self._biases
        if params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1.0:
            self._penalise(row, tokens)
        if num_output_tokens < params.min_tokens:
            # A model's own settings may name ends that its output is too narrow for.
            _forbid(row, self._ends[self._ends < len(row)])

    def _penalise(self, row: Tensor, tokens: list[int]) -> None:
        self._counts.update(tokens[self._num_counted :])
        self._num_counted = len(tokens)
        params, output_ids = self._params, _ids(self._counts)
        if params.repetition_penalty != 1.0:
            seen = torch.cat((self._prompt_ids, _ids(self._counts.keys() - self._prompt)))
            values = row[seen]
            factor = params.repetition_penalty
            row[seen] = torch.where(values > 0, values / factor, values * factor)
        times = torch.tensor(list(self._counts.values()), dtype=torch.float32)
        row[output_ids] -= params.frequency_penalty * times + params.presence_penalty


def draw(row: Tensor, params: SamplingParams, generator: torch.Generator) -> int:
    """row: [vocabulary], not all of it -inf -> a token by temperature, min_p, top_k and top_p.

    One random number a token, and a full sort only when the likeliest NUM_LIKELY are short of top_p: multinomial
    and sort took 1.5 and 3 ms a row of 49,152, a quarter of the whole step."""
    # With the highest at 0 the division can only underflow.
    scaled, ids = (row - row.max()) / params.temperature, None
    if 0 < params.top_k < len(scaled):
        scaled, ids = scaled.topk(params.top_k)
    if params.min_p > 0.0:
        scaled = scaled.masked_fill(scaled.exp() < params.min_p, NEVER)
    probs = scaled.softmax(dim=-1)
    if params.top_p < 1.0:
        if ids is None:
            probs, ids = _likeliest(probs, params.top_p)
        # A token stays when what comes before it is short of top_p, so the most likely one always stays.
        probs = probs.masked_fill(probs.cumsum(dim=-1) - probs >= params.top_p, 0.0)
    at = _pick(probs, generator)
    return at if ids is None else int(ids[at])


def _likeliest(probs: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Probabilities and ids, best first, enough of them to reach `share`."""
    values, ids = probs.topk(min(NUM_LIKELY, len(probs)))
    if float(values.sum()) >= share:
        return values, ids
    values, ids = probs.sort(descending=True)
    return values, ids


def _pick(probs: Tensor, generator: torch.Generator) -> int:
    """An index with that probability; never one of probability 0. In float64: 49,152 roundings add up."""
    sums = probs.cumsum(dim=-1, dtype=torch.float64)
    point = torch.rand(1, dtype=torch.float64, generator=generator) * sums[-1]
    at = int(torch.searchsorted(sums, point, right=True))
    return at if at < len(probs) else int(probs.argmax())


def _forbid(row: Tensor, ids: Tensor) -> None:
    """Unless nothing else is left."""
    kept = row[ids]
    row[ids] = NEVER
    if row.max() == NEVER:
        row[ids] = kept


def _ids(values: Iterable[int]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.long)
