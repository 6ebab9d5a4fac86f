"""Log probabilities of tokens: from the `logprobs` tensor, into OpenAI's two shapes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from openai.types.chat.chat_completion_token_logprob import ChatCompletionTokenLogprob, TopLogprob
from openai.types.completion_choice import Logprobs

HALF_CHARACTER = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True)
class TokenLogprob:
    """One generated token."""

    token: str
    logprob: float
    top: tuple[tuple[str, float], ...]
    """The likeliest in its place, best first."""


class _Entry(msgspec.Struct):
    logprob: float
    rank: int | None
    decoded_token: str


def read_logprobs(raw: bytes) -> tuple[TokenLogprob, ...]:
    """As Triton's vLLM backend writes them: a list of objects, the chosen token first. Raises ValueError."""
    try:
        steps = msgspec.json.decode(raw, type=list[dict[str, _Entry]])
    except msgspec.MsgspecError as exc:
        raise ValueError(f"logprobs: {exc}") from exc
    return tuple(_token([*step.values()]) for step in steps)


def _token(entries: list[_Entry]) -> TokenLogprob:
    if not entries:
        raise ValueError("a token without any log probability")
    ranked = sorted((entry.rank, entry.decoded_token, entry.logprob) for entry in entries if entry.rank)
    top = tuple((text, logprob) for _, text, logprob in ranked)
    return TokenLogprob(entries[0].decoded_token, entries[0].logprob, top)


def chat_logprobs(tokens: Sequence[TokenLogprob]) -> list[ChatCompletionTokenLogprob]:
    return [
        ChatCompletionTokenLogprob(
            token=token.token,
            bytes=_bytes(token.token),
            logprob=token.logprob,
            top_logprobs=[
                TopLogprob(token=text, bytes=_bytes(text), logprob=logprob) for text, logprob in token.top
            ],
        )
        for token in tokens
    ]


def completion_logprobs(tokens: Sequence[TokenLogprob], offset: int = 0) -> Logprobs:
    """`offset`: characters of the text before the first of these tokens."""
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token.token)
    return Logprobs(
        text_offset=offsets,
        token_logprobs=[token.logprob for token in tokens],
        tokens=[token.token for token in tokens],
        top_logprobs=[dict(reversed([(token.token, token.logprob), *token.top])) for token in tokens],
    )


def _bytes(text: str) -> list[int] | None:
    """None for part of a character: which bytes it is, its text doesn't say."""
    return None if HALF_CHARACTER in text else list(text.encode())
