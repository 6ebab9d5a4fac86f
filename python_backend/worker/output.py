"""What one request's tokens become: text without half characters or stop strings, and the reason of the end.

A request ends on a token (end of sequence, one of its stop tokens), on a stop string, when its guide is complete,
or for length: its own `max_tokens`, the service's `max_output_tokens` or the context. Asking for more than the
service gives is no error: the text ends early, with "length".
"""

from __future__ import annotations

from dataclasses import dataclass

from python_backend.messages import Delta, FinishReason, TokenLogprobs
from python_backend.worker.detokenizer import Decoder, IncrementalDecoder, StopFilter, TokenTexts
from python_backend.worker.sampler import Choice
from python_backend.worker.sequence import Sequence


@dataclass(frozen=True)
class OutputLimits:
    """What the model, not the request, says about where a text ends."""

    eos_token_ids: frozenset[int]
    max_context_tokens: int
    max_output_tokens: int = 0
    """Of one request, whatever it asks for; 0: no limit but the context."""


class Output:
    """One sequence's way from tokens to deltas."""

    def __init__(
        self,
        sequence: Sequence,
        tokenizer: Decoder,
        limits: OutputLimits,
        token_texts: TokenTexts | None = None,
    ) -> None:
        self._sequence = sequence
        self._decoder = IncrementalDecoder(tokenizer)
        self._token_texts = token_texts or TokenTexts(tokenizer)
        self._stops = StopFilter(sequence.sampling.stop)
        self._is_started = False
        sampling = sequence.sampling
        own_ends = frozenset() if sampling.ignore_eos else limits.eos_token_ids
        self._last_tokens = own_ends | frozenset(sampling.stop_token_ids)
        self._max_context_tokens = limits.max_context_tokens
        self._max_output_tokens = min(sampling.max_tokens, limits.max_output_tokens or sampling.max_tokens)

    def push(self, choice: Choice) -> Delta:
        """Append one token and say what of it can be sent; with a `finish_reason` it was the last."""
        sequence, token = self._sequence, choice.token
        sequence.tokens.append(token)
        is_last = token in self._last_tokens
        text, hit_stop = ("", False) if is_last else self._text(token)
        reason = self._finish_reason(stopped=is_last or hit_stop or choice.is_complete)
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
            logprobs=self._logprobs(choice),
        )

    def _text(self, token: int) -> tuple[str, bool]:
        """(text that may be sent, whether a stop string was reached). As in vLLM none is looked for in what the
        first `min_tokens` tokens complete."""
        text = self._decoder.push(token)
        if self._sequence.num_output_tokens <= self._sequence.sampling.min_tokens:
            return text, False
        return self._stops.push(text)

    def _logprobs(self, choice: Choice) -> list[TokenLogprobs]:
        found, text_of = choice.logprobs, self._token_texts.of
        if found is None:
            return []
        top = [(token, text_of(token), logprob) for token, logprob in found.top]
        return [TokenLogprobs(choice.token, text_of(choice.token), found.chosen, top)]

    def _finish_reason(self, *, stopped: bool) -> FinishReason | None:
        if stopped:
            return "stop"
        sequence = self._sequence
        is_full = sequence.num_tokens >= self._max_context_tokens
        return "length" if is_full or sequence.num_output_tokens >= self._max_output_tokens else None
