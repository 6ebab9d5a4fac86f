"""Logits -> the next token of each sequence."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from contracts.sampling import SamplingParams
from python_backend.worker.errors import RequestRefused
from python_backend.worker.grammar import Grammars, Matcher
from python_backend.worker.sequence import Sequence
from python_backend.worker.shaping import NEVER, Shaping, draw

GREEDY_BELOW_TEMPERATURE = 1e-5
"""As in vLLM: dividing by less overflows float32, and nothing but the most likely token is left anyway."""


@dataclass(frozen=True)
class Logprobs:
    """Of one position, by the model's own distribution: before bias, penalties, guide and temperature, as vLLM's
    default "raw_logprobs"."""

    chosen: float
    top: list[tuple[int, float]]
    """The likeliest tokens, best first."""


@dataclass(frozen=True)
class Choice:
    """One sequence's next token."""

    token: int
    logprobs: Logprobs | None = None
    is_complete: bool = False
    """The guide has ended: nothing may follow."""


@dataclass
class _Control:
    """What a request wants that is more than the likeliest token."""

    params: SamplingParams
    generator: torch.Generator | None
    shaping: Shaping | None
    matcher: Matcher | None

    @property
    def is_needed(self) -> bool:
        wants_logprobs = self.params.logprobs is not None
        return bool(self.generator or self.shaping or self.matcher or wants_logprobs)


class Sampler:
    """Greedy requests cost one maximum over the batch; others are shaped and drawn row by row, on the CPU, each
    with a generator of its own, so that what is drawn does not depend on who else is in the batch."""

    def __init__(
        self,
        eos_token_ids: Iterable[int] = (),
        vocabulary_size: int | None = None,
        grammars: Grammars | None = None,
    ) -> None:
        self._eos_token_ids = frozenset(eos_token_ids)
        self._vocabulary_size = vocabulary_size
        self._grammars = grammars
        self._controls: dict[int, _Control] = {}

    def add(self, sequence: Sequence) -> None:
        """Before its first `choose`. Raises RequestRefused: unknown token ids, a guide that can't be compiled."""
        params = sequence.sampling
        self._check_ids(params)
        control = _Control(params, _generator(params), self._shaping(sequence), self._matcher(params))
        if control.is_needed:
            self._controls[sequence.request_id] = control

    def remove(self, request_id: int) -> None:
        self._controls.pop(request_id, None)

    def choose(self, logits: Tensor, sequences: list[Sequence]) -> list[Choice | RequestRefused]:
        """logits: [len(sequences), vocabulary] -> one choice each, or why there is none."""
        highest, greedy = logits.max(dim=-1)
        choices: list[Choice | RequestRefused] = [
            Choice(token) if is_finite else RequestRefused("INTERNAL", "the model's output is not finite")
            for token, is_finite in zip(greedy.tolist(), highest.isfinite().tolist(), strict=True)
        ]
        controlled = [
            (at, sequence, control)
            for at, sequence in enumerate(sequences)
            if (control := self._controls.get(sequence.request_id)) and isinstance(choices[at], Choice)
        ]
        if controlled:
            rows = logits[[at for at, _, _ in controlled]].float().cpu()
            tops = _top_logprobs(rows, [control.params.logprobs for _, _, control in controlled])
            for row, top, (at, sequence, control) in zip(rows, tops, controlled, strict=True):
                choices[at] = _choose(row, top, sequence, control)
        return choices

    def _check_ids(self, params: SamplingParams) -> None:
        size = self._vocabulary_size
        named = [*(token_id for token_id, _ in params.logit_bias), *params.stop_token_ids]
        if size is not None and named and max(named) >= size:
            raise RequestRefused(
                "INVALID_ARGUMENT",
                f"logit_bias or stop_token_ids name token {max(named)}, the model's vocabulary ends at {size - 1}",
            )

    def _shaping(self, sequence: Sequence) -> Shaping | None:
        params = sequence.sampling
        if not Shaping.is_needed(params):
            return None
        return Shaping(params, sequence.tokens[: sequence.num_prompt_tokens], self._eos_token_ids)

    def _matcher(self, params: SamplingParams) -> Matcher | None:
        if params.guide is None:
            return None
        if self._grammars is None:
            raise RequestRefused("INVALID_ARGUMENT", "this model does not do guided decoding")
        return self._grammars.matcher(params.guide)


@dataclass(frozen=True)
class _TopLogprobs:
    """One row's log probabilities, and the likeliest of them."""

    row: Tensor
    top: list[tuple[int, float]]

    def of(self, token: int) -> Logprobs:
        return Logprobs(float(self.row[token]), self.top)


def _generator(params: SamplingParams) -> torch.Generator | None:
    if params.temperature < GREEDY_BELOW_TEMPERATURE:
        return None
    generator = torch.Generator()
    generator.seed() if params.seed is None else generator.manual_seed(params.seed)
    return generator


def _top_logprobs(rows: Tensor, counts: list[int | None]) -> list[_TopLogprobs | None]:
    """For each row that has a count; the softmax of all of them is one call."""
    wanted = [(at, count) for at, count in enumerate(counts) if count is not None]
    tops: list[_TopLogprobs | None] = [None] * len(counts)
    if not wanted:
        return tops
    logprobs = rows[[at for at, _ in wanted]].log_softmax(dim=-1)
    values, ids = logprobs.topk(min(max(count for _, count in wanted), rows.shape[-1]))
    likeliest = zip(logprobs, ids.tolist(), values.tolist(), strict=True)
    for (at, count), (row, top_ids, top_values) in zip(wanted, likeliest, strict=True):
        tops[at] = _TopLogprobs(row, list(zip(top_ids[:count], top_values[:count], strict=True)))
    return tops


def _choose(
    row: Tensor, top: _TopLogprobs | None, sequence: Sequence, control: _Control
) -> Choice | RequestRefused:
    try:
        if control.matcher is not None:
            _keep(row, control.matcher.allowed())
        if control.shaping is not None:
            control.shaping.apply(row, sequence.tokens, sequence.num_output_tokens)
        if row.max() == NEVER:
            raise RequestRefused("INVALID_ARGUMENT", "the guide leaves no token that could come next")
        generator = control.generator
        token = int(row.argmax()) if generator is None else draw(row, control.params, generator)
        is_complete = control.matcher is not None and control.matcher.accept(token)
    except RequestRefused as exc:
        return exc
    return Choice(token, None if top is None else top.of(token), is_complete)


def _keep(row: Tensor, allowed: Tensor) -> None:
    """The model's output can be wider than the tokenizer, whose mask is as long as the longer of the two."""
    row.masked_fill_(~allowed[: row.shape[-1]], NEVER)
