"""What one request's tokens become: text without half characters or stop strings, and the reason of the end."""

from __future__ import annotations

from dataclasses import dataclass

from python_backend.messages import Delta, FinishReason
from python_backend.worker.detokenizer import Decoder, IncrementalDecoder, StopFilter
from python_backend.worker.sequence import Sequence


@dataclass(frozen=True)
class OutputLimits:
    """What the model, not the request, says about where a text ends."""

    eos_token_ids: frozenset[int]
    max_context_tokens: int


class Output:
    """One sequence's way from tokens to deltas."""

    def __init__(self, sequence: Sequence, tokenizer: Decoder, limits: OutputLimits) -> None:
        self._sequence = sequence
        self._limits = limits
        self._decoder = IncrementalDecoder(tokenizer)
        self._stops = StopFilter(sequence.sampling.stop)
        self._is_started = False

    def push(self, token: int) -> Delta:
        """Append one token and say what of it can be sent; with a `finish_reason` it was the last."""
        sequence = self._sequence
        sequence.tokens.append(token)
        is_eos = token in self._limits.eos_token_ids and not sequence.sampling.ignore_eos
        text, hit_stop = ("", False) if is_eos else self._stops.push(self._decoder.push(token))
        reason = self._finish_reason(stopped=is_eos or hit_stop)
        is_first, self._is_started = not self._is_started, True
        if reason is not None and not hit_stop:
            text += self._stops.flush()
        shows_prompt = is_first or reason is not None
        return Delta(
            sequence.request_id,
            text,
            1,
            num_input_tokens=sequence.num_prompt_tokens if shows_prompt else 0,
            num_cached_tokens=sequence.num_cached_tokens if shows_prompt else 0,
            finish_reason=reason,
        )

    def _finish_reason(self, *, stopped: bool) -> FinishReason | None:
        if stopped:
            return "stop"
        sequence = self._sequence
        is_full = sequence.num_tokens >= self._limits.max_context_tokens
        return "length" if is_full or sequence.num_output_tokens >= sequence.sampling.max_tokens else None
