"""OpenAI's shapes from ours and ours from OpenAI's: pure, no I/O, no clock.

Answers are OpenAI's own types, dumped with `exclude_unset`: what a client must see as null is set to None here,
what OpenAI leaves out stays out.
"""

from __future__ import annotations

import base64
import math
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, cast

import msgspec
from openai.types.chat.chat_completion import ChatCompletion, ChoiceLogprobs
from openai.types.chat.chat_completion import Choice as ChatChoice
from openai.types.chat.chat_completion_chunk import ChatCompletionChunk, ChoiceDelta
from openai.types.chat.chat_completion_chunk import Choice as ChunkChoice
from openai.types.chat.chat_completion_chunk import ChoiceLogprobs as ChunkLogprobs
from openai.types.chat.chat_completion_message import ChatCompletionMessage
from openai.types.completion import Completion
from openai.types.completion_choice import CompletionChoice, Logprobs
from openai.types.completion_usage import CompletionUsage, PromptTokensDetails
from openai.types.model import Model

from contracts.sampling import SamplingParams, sampling_values
from gateway.errors import GatewayError, UpstreamFailed
from gateway.logprobs import TokenLogprob, chat_logprobs, completion_logprobs

FinishReason = Literal["stop", "length"]
DONE = b"data: [DONE]\n\n"
_LINE_ENDS_OF_SOME = tuple((char.encode(), f"\\u{ord(char):04x}".encode()) for char in "\u0085\u2028\u2029")


def sampling_json(sampling: SamplingParams, max_tokens: int) -> bytes:
    """The `sampling_parameters` tensor."""
    return msgspec.json.encode(sampling_values(sampling) | {"max_tokens": max_tokens})


def usage(num_prompt_tokens: int, num_output_tokens: int, num_cached_tokens: int) -> CompletionUsage:
    """`num_cached_tokens`: of the prompt, those that were not computed again."""
    return CompletionUsage(
        prompt_tokens=num_prompt_tokens,
        completion_tokens=num_output_tokens,
        total_tokens=num_prompt_tokens + num_output_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=num_cached_tokens),
    )


Outcome = tuple[str, str, Sequence[TokenLogprob] | None]
"""An answer's text, finish reason and, where they were asked for, log probabilities."""
About = Mapping[str, Any] | None
"""The answer's `tidegate` field: what OpenAI's shape has no place for. None: nothing to say, no such field."""


class Chunks(Protocol):
    """Streamed answers as server-sent events. With `include_usage` each says usage, null until the end."""

    def start(self) -> bytes: ...

    def text(self, index: int, text: str, logprobs: Sequence[TokenLogprob] = ()) -> bytes: ...

    def finish(self, index: int, reason: str, *, is_last: bool = True) -> bytes: ...

    def usage(self, counted: CompletionUsage) -> bytes: ...


class ChatChunks:
    """Events of a streamed /v1/chat/completions answer. The last one carries `about`."""

    def __init__(
        self,
        answer_id: str,
        created_unix_s: int,
        model: str,
        include_usage: bool,
        num_choices: int = 1,
        about: About = None,
    ) -> None:
        self._common: dict[str, Any] = {"id": answer_id, "created": created_unix_s, "model": model}
        self._no_usage: dict[str, Any] = {"usage": None} if include_usage else {}
        self._num_choices = num_choices
        self._about = _about(about)

    def start(self) -> bytes:
        role = ChoiceDelta(role="assistant", content="")
        return b"".join(self._delta(index, role) for index in range(self._num_choices))

    def text(self, index: int, text: str, logprobs: Sequence[TokenLogprob] = ()) -> bytes:
        return self._delta(index, ChoiceDelta(content=text), logprobs=logprobs)

    def finish(self, index: int, reason: str, *, is_last: bool = True) -> bytes:
        about = self._about if is_last and not self._no_usage else {}
        return self._delta(index, ChoiceDelta(), cast(FinishReason, reason), about=about)

    def usage(self, counted: CompletionUsage) -> bytes:
        return self._event([], {"usage": counted, **self._about})

    def _delta(
        self,
        index: int,
        delta: ChoiceDelta,
        reason: FinishReason | None = None,
        logprobs: Sequence[TokenLogprob] = (),
        about: dict[str, Any] | None = None,
    ) -> bytes:
        found = ChunkLogprobs(content=chat_logprobs(logprobs), refusal=None) if logprobs else None
        choice = ChunkChoice(index=index, delta=delta, logprobs=found, finish_reason=reason)
        return self._event([choice], {**self._no_usage, **about} if about else self._no_usage)

    def _event(self, choices: list[ChunkChoice], extra: dict[str, Any]) -> bytes:
        chunk = ChatCompletionChunk(object="chat.completion.chunk", choices=choices, **self._common, **extra)
        return event(chunk.model_dump_json(exclude_unset=True).encode())


class CompletionChunks:
    """Events of a streamed /v1/completions answer."""

    def __init__(
        self, answer_id: str, created_unix_s: int, model: str, include_usage: bool, num_choices: int = 1
    ) -> None:
        self._common: dict[str, Any] = {"id": answer_id, "created": created_unix_s, "model": model}
        self._no_usage: dict[str, Any] = {"usage": None} if include_usage else {}
        self._num_chars = [0] * num_choices
        """Of the tokens of each answer so far: where in its text the next one begins."""

    def start(self) -> bytes:
        return b""

    def text(self, index: int, text: str, logprobs: Sequence[TokenLogprob] = ()) -> bytes:
        found = completion_logprobs(logprobs, self._num_chars[index]) if logprobs else None
        self._num_chars[index] += sum(len(token.token) for token in logprobs)
        return self._event([_completion_choice(index, text, None, found)], self._no_usage)

    def finish(self, index: int, reason: str, *, is_last: bool = True) -> bytes:
        return self._event([_completion_choice(index, "", reason)], self._no_usage)

    def usage(self, counted: CompletionUsage) -> bytes:
        return self._event([], {"usage": counted})

    def _event(self, choices: list[CompletionChoice], extra: dict[str, Any]) -> bytes:
        chunk = Completion(object="text_completion", choices=choices, **self._common, **extra)
        return event(chunk.model_dump_json(exclude_unset=True).encode())


def _about(about: About) -> dict[str, Any]:
    return {"tidegate": dict(about)} if about else {}


def event(data: bytes) -> bytes:
    """Clients that split lines as Python's str does would cut an event at these; JSON may escape them."""
    for raw, escaped in _LINE_ENDS_OF_SOME:
        data = data.replace(raw, escaped)
    return b"data: " + data + b"\n\n"


def error_event(error: GatewayError) -> bytes:
    """What a stream ends with when it fails after it began: the client's library raises, no [DONE] follows."""
    return event(error.body())


def chat_answer(
    answer_id: str,
    created_unix_s: int,
    model: str,
    outcomes: Sequence[Outcome],
    counted: CompletionUsage,
    about: About = None,
) -> bytes:
    choices = [_chat_choice(index, *outcome) for index, outcome in enumerate(outcomes)]
    answer = ChatCompletion(
        id=answer_id,
        object="chat.completion",
        created=created_unix_s,
        model=model,
        choices=choices,
        usage=counted,
        **_about(about),
    )
    return answer.model_dump_json(exclude_unset=True).encode()


def _chat_choice(index: int, text: str, reason: str, logprobs: Sequence[TokenLogprob] | None) -> ChatChoice:
    message = ChatCompletionMessage(role="assistant", content=text, refusal=None)
    found = None if logprobs is None else ChoiceLogprobs(content=chat_logprobs(logprobs), refusal=None)
    return ChatChoice(index=index, message=message, logprobs=found, finish_reason=cast(FinishReason, reason))


def completion_answer(
    answer_id: str,
    created_unix_s: int,
    model: str,
    outcomes: Sequence[Outcome],
    counted: CompletionUsage,
) -> bytes:
    """`outcomes`: the answers to each prompt one after the other."""
    choices = [
        _completion_choice(index, text, reason, None if logprobs is None else completion_logprobs(logprobs))
        for index, (text, reason, logprobs) in enumerate(outcomes)
    ]
    answer = Completion(
        id=answer_id,
        object="text_completion",
        created=created_unix_s,
        model=model,
        choices=choices,
        usage=counted,
    )
    return answer.model_dump_json(exclude_unset=True).encode()


def _completion_choice(
    index: int, text: str, reason: str | None, logprobs: Logprobs | None = None
) -> CompletionChoice:
    # In a stream the type's finish_reason is null until the end, which the type itself does not say.
    return CompletionChoice.model_construct(
        _fields_set={"index", "text", "logprobs", "finish_reason"},
        index=index,
        text=text,
        logprobs=logprobs,
        finish_reason=cast(FinishReason, reason),
    )


def embedding_answer(model: str, vectors: Sequence[bytes], num_tokens: int, is_base64: bool) -> bytes:
    """OpenAI's type knows no base64, so this answer is built by hand. Raises UpstreamFailed on NaN."""
    data = [
        {"object": "embedding", "index": index, "embedding": _vector(raw, is_base64)}
        for index, raw in enumerate(vectors)
    ]
    counted = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    return msgspec.json.encode({"object": "list", "data": data, "model": model, "usage": counted})


def _vector(raw: bytes, is_base64: bool) -> str | list[float]:
    values = array("f", raw).tolist()
    if not math.isfinite(sum(values)):
        raise UpstreamFailed("the model made an embedding that holds NaN or infinity")
    return base64.b64encode(raw).decode() if is_base64 else values


def model_entry(name: str, created_unix_s: int) -> Model:
    return Model(id=name, object="model", created=created_unix_s, owned_by="tidegate")


def model_list(models: Sequence[Model]) -> bytes:
    return msgspec.json.encode(
        {"object": "list", "data": [model.model_dump(exclude_unset=True) for model in models]}
    )
