"""Request bodies: bytes -> checked values, or an error that names the part that is wrong.

What OpenAI knows and this server does not do is refused by name: a client that asks for tools must not take
an answer without them for the model's choice. What changes nothing in the answer (`user`, `metadata`) is
taken and ignored.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from contracts.guide import KEYS as GUIDE_KEYS
from contracts.sampling import MAX_LOGPROBS, SamplingError, SamplingParams, check_sampling
from gateway.errors import InvalidRequest, UnsupportedFeature, shown
from gateway.response_format import read_response_format

MAX_EMBED_INPUTS = 2048
"""OpenAI's own limit."""
MAX_PROMPTS = 32
MAX_ANSWERS = 32
"""Of one request: prompts times `n`. Each is a sequence of its own in the engine."""

# The second and third line are vLLM's extras.
_SAMPLING = (
    "max_tokens", "temperature", "top_p", "seed", "stop", "presence_penalty", "frequency_penalty", "logit_bias",
    "top_k", "ignore_eos", "repetition_penalty", "min_p", "min_tokens", "stop_token_ids",
    *GUIDE_KEYS, "guided_lenient",
)  # fmt: skip
_IGNORED = (
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
    "prompt_cache_retention", "parallel_tool_calls",
)  # fmt: skip

_ROLES = ("system", "developer", "user", "assistant")
_TOOL_ROLES = ("tool", "function")

# Key -> the values that ask for nothing.
_NOT_IN_GENERATE: dict[str, tuple[Any, ...]] = {"best_of": (None, 1)}
_NOT_IN_CHAT: dict[str, tuple[Any, ...]] = _NOT_IN_GENERATE | {
    "audio": (None,),
    "function_call": (None, "none"),
    "functions": (None, []),
    "modalities": (None, ["text"]),
    "prediction": (None,),
    "reasoning_effort": (None, "none"),
    "tool_choice": (None, "none"),
    "tools": (None, []),
    "verbosity": (None, "medium"),
    "web_search_options": (None,),
}
_NOT_IN_COMPLETION: dict[str, tuple[Any, ...]] = _NOT_IN_GENERATE | {
    "echo": (None, False),
    "suffix": (None, ""),
}
_NOT_IN_EMBEDDING: dict[str, tuple[Any, ...]] = {"dimensions": (None,)}

CHAT_KEYS = (
    "model", "messages", "stream", "stream_options", "max_completion_tokens", "logprobs", "top_logprobs",
    "response_format", "n", *_SAMPLING,
)  # fmt: skip
COMPLETION_KEYS = ("model", "prompt", "stream", "stream_options", "logprobs", "n", *_SAMPLING)
EMBEDDING_KEYS = ("model", "input", "encoding_format")


class Conversation(msgspec.Struct, frozen=True):
    """A checked body of /v1/chat/completions."""

    model: str
    messages: list[dict[str, str]]
    """As the chat template takes them: role and content, both text."""
    sampling: SamplingParams
    max_tokens: int | None
    """None: as many as fit."""
    num_choices: int
    is_stream: bool
    include_usage: bool


class Completion(msgspec.Struct, frozen=True):
    """A checked body of /v1/completions."""

    model: str
    prompts: list[str]
    sampling: SamplingParams
    max_tokens: int
    num_choices: int
    """Answers to each prompt."""
    is_stream: bool
    include_usage: bool


class EmbeddingInput(msgspec.Struct, frozen=True):
    """A checked body of /v1/embeddings."""

    model: str
    texts: list[str]
    is_base64: bool


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class _GenerateBody(msgspec.Struct, kw_only=True):
    """What chat and completion share. null stands for the default, as in OpenAI's API."""

    model: str
    stream: bool | None = None
    stream_options: _StreamOptions | None = None


class _ChatBody(_GenerateBody, kw_only=True):
    messages: list[Any]


class _EmbeddingBody(msgspec.Struct, kw_only=True):
    model: str
    input: str | list[Any]
    encoding_format: str | None = None


class _Message(msgspec.Struct, kw_only=True):
    role: str
    content: str | list[Any] | None = None
    name: str | None = None


def parse_chat(raw: bytes) -> Conversation:
    values = _object(raw)
    _refuse(values, _NOT_IN_CHAT, CHAT_KEYS)
    body = _convert(values, _ChatBody)
    if not body.messages:
        raise InvalidRequest("messages is empty; send at least one message", "messages")
    if values.get("max_tokens") is not None and values.get("max_completion_tokens") is not None:
        raise InvalidRequest("send max_completion_tokens or max_tokens, not both", "max_tokens")
    sampling = _with_response_format(
        msgspec.structs.replace(_sampling(values), logprobs=_chat_logprobs(values)),
        values.get("response_format"),
    )
    asked = values.get("max_completion_tokens") is not None or values.get("max_tokens") is not None
    return Conversation(
        model=body.model,
        messages=[_message(value, f"messages[{at}]") for at, value in enumerate(body.messages)],
        sampling=sampling,
        max_tokens=sampling.max_tokens if asked else None,
        num_choices=_num_choices(values.get("n"), 1),
        is_stream=bool(body.stream),
        include_usage=_include_usage(body),
    )


def parse_completion(raw: bytes) -> Completion:
    values = _object(raw)
    _refuse(values, _NOT_IN_COMPLETION, COMPLETION_KEYS)
    body = _convert(values, _GenerateBody)
    prompts = _texts(values.get("prompt"), "prompt", MAX_PROMPTS)
    logprobs = _check_sampling({"logprobs": values.get("logprobs")}, "logprobs").logprobs
    sampling = msgspec.structs.replace(_sampling(values), logprobs=logprobs)
    return Completion(
        model=body.model,
        prompts=prompts,
        sampling=sampling,
        max_tokens=sampling.max_tokens,
        num_choices=_num_choices(values.get("n"), len(prompts)),
        is_stream=bool(body.stream),
        include_usage=_include_usage(body),
    )


def parse_embedding(raw: bytes) -> EmbeddingInput:
    values = _object(raw)
    _refuse(values, _NOT_IN_EMBEDDING, EMBEDDING_KEYS)
    body = _convert(values, _EmbeddingBody)
    if body.encoding_format is not None:
        _one_of(body.encoding_format, ("float", "base64"), "encoding_format")
    texts = _texts(body.input, "input", MAX_EMBED_INPUTS)
    return EmbeddingInput(model=body.model, texts=texts, is_base64=body.encoding_format == "base64")


def _object(raw: bytes) -> dict[str, Any]:
    try:
        values = msgspec.json.decode(raw.decode())
    except UnicodeDecodeError as exc:
        raise InvalidRequest(f"the body is not UTF-8: {exc.reason} at byte {exc.start}") from exc
    except RecursionError as exc:
        raise InvalidRequest("the body is no valid JSON: nested too deep") from exc
    except msgspec.MsgspecError as exc:
        raise InvalidRequest(f"the body is no valid JSON: {exc}") from exc
    if not isinstance(values, dict):
        raise InvalidRequest(f"the body must be a JSON object, got {_kind(values)}")
    return values


def _refuse(values: dict[str, Any], unsupported: dict[str, tuple[Any, ...]], known: Iterable[str]) -> None:
    accepted = {*known, *_IGNORED}
    for key, value in values.items():
        if key in accepted:
            continue
        if key not in unsupported:
            near = difflib.get_close_matches(key[:64], [*accepted, *unsupported], n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise InvalidRequest(f"unknown parameter {shown(key)}{hint}", key[:64])
        if not any(_is_same(value, neutral) for neutral in unsupported[key]):
            raise UnsupportedFeature(f"{key} = {shown(value)} is not supported; leave it out", key)


def _is_same(value: object, neutral: object) -> bool:
    """JSON's equality: 0 is 0.0, but false is not 0."""
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)


_Body = TypeVar("_Body")
_AT = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<path>[^`]*)`)?$", re.DOTALL)
_MISSING = re.compile(r"missing required field `(?P<field>[^`]*)`")


def _convert(value: object, kind: Callable[..., _Body], at: str = "") -> _Body:
    """msgspec's own checks, its complaint turned into one that names the parameter."""
    try:
        return msgspec.convert(value, type=kind)  # type: ignore[no-any-return]
    except msgspec.ValidationError as exc:
        match = _AT.match(str(exc))
        what, path = (match["what"], match["path"] or "") if match else (str(exc), "")
        missing = _MISSING.search(what)
        names = [at, path, missing["field"] if missing else ""]
        param = ".".join(name for name in names if name) or None
        text = "is missing" if missing else what[:1].lower() + what[1:].replace("`", "")
        raise InvalidRequest(f"{param or 'the body'}: {text}", param) from exc


def _one_of(value: str, allowed: Sequence[str], param: str) -> None:
    if value not in allowed:
        raise InvalidRequest(f"{param} = {shown(value)}, must be one of {', '.join(allowed)}", param)


def _sampling(values: dict[str, Any]) -> SamplingParams:
    """Checks one key at a time, so that the error can name it."""
    given = {key: values[key] for key in _SAMPLING if values.get(key) is not None}
    for key, value in given.items():
        _check_sampling({key: value}, key)
    if values.get("max_completion_tokens") is not None:
        given["max_tokens"] = values["max_completion_tokens"]
        _check_sampling({"max_tokens": given["max_tokens"]}, "max_completion_tokens")
    try:
        return check_sampling(given)
    except SamplingError as exc:  # each is right alone, so it's the guides
        raise InvalidRequest(str(exc), next(key for key in GUIDE_KEYS if key in given)) from exc


def _chat_logprobs(values: dict[str, Any]) -> int | None:
    """The number of alternatives a token; None: no log probabilities."""
    is_wanted, count = values.get("logprobs"), values.get("top_logprobs")
    if is_wanted is not None and not isinstance(is_wanted, bool):
        raise InvalidRequest(f"logprobs = {shown(is_wanted)}, must be true or false", "logprobs")
    if count is not None:
        is_count = isinstance(count, int) and not isinstance(count, bool)
        if not is_count or not 0 <= count <= MAX_LOGPROBS:
            raise InvalidRequest(
                f"top_logprobs = {shown(count)}, must be a whole number from 0 to {MAX_LOGPROBS}",
                "top_logprobs",
            )
        if count and not is_wanted:
            raise InvalidRequest("top_logprobs is only allowed when logprobs is true", "top_logprobs")
    return (count or 0) if is_wanted else None


def _with_response_format(sampling: SamplingParams, value: Any) -> SamplingParams:
    guide = read_response_format(value)
    if guide is None:
        return sampling
    if sampling.guide is not None:
        raise InvalidRequest(
            f"response_format and guided_{sampling.guide.kind} are both given, one answer can follow only one",
            "response_format",
        )
    return msgspec.structs.replace(sampling, guide=guide)


def _check_sampling(values: dict[str, Any], param: str) -> SamplingParams:
    try:
        return check_sampling(values)
    except SamplingError as exc:
        (key,) = values
        raise InvalidRequest(str(exc).replace(key, param, 1), param) from exc


def _num_choices(value: Any, num_prompts: int) -> int:
    if value is None:
        return 1
    most = MAX_ANSWERS // num_prompts
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        each = f" with {num_prompts} prompts" if num_prompts > 1 else ""
        raise InvalidRequest(f"n = {shown(value)}, must be a whole number from 1 to {most}{each}", "n")
    return value


def _include_usage(body: _GenerateBody) -> bool:
    if body.stream_options is None:
        return False
    if not body.stream:
        raise InvalidRequest("stream_options is only allowed when stream is true", "stream_options")
    return bool(body.stream_options.include_usage)


def _message(value: Any, at: str) -> dict[str, str]:
    message = _convert(value, _Message, at)
    for key in value.keys() - {"role", "content", "name"}:
        # Clients send an answer's message back as they got it, empty fields included.
        if value[key]:
            raise UnsupportedFeature(f"{at}.{key[:64]} is not supported", f"{at}.{key[:64]}")
    _one_of(message.role, (*_ROLES, *_TOOL_ROLES), f"{at}.role")
    if message.role in _TOOL_ROLES:
        raise UnsupportedFeature(f"{at}: the role {message.role!r} is not supported", f"{at}.role")
    # Templates know no "developer"; OpenAI's older models read it as "system" too.
    role = "system" if message.role == "developer" else message.role
    rendered = {"role": role, "content": _content(message.content, f"{at}.content")}
    return rendered | ({"name": message.name} if message.name else {})


def _content(content: str | list[Any] | None, at: str) -> str:
    if isinstance(content, str):
        return content
    if not content:
        raise InvalidRequest(f"{at} = {shown(content)}, must be text or a list of text parts", at)
    return "\n".join(_part(part, f"{at}[{index}]") for index, part in enumerate(content))


def _part(part: Any, at: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str):
        raise InvalidRequest(f"{at} must be an object with a type, got {shown(part)}", at)
    if kind != "text":
        raise UnsupportedFeature(
            f"{at}: parts of type {shown(kind)} are not supported, only text", f"{at}.type"
        )
    if not isinstance(part.get("text"), str):
        raise InvalidRequest(f"{at}.text = {shown(part.get('text'))}, must be a string", f"{at}.text")
    return str(part["text"])


def _texts(value: Any, param: str, most: int) -> list[str]:
    """A text or a list of texts, none of them empty."""
    texts = value if isinstance(value, list) else [value]
    if not 1 <= len(texts) <= most:
        raise InvalidRequest(f"{param} has {len(texts)} entries, must have 1 to {most}", param)
    for index, text in enumerate(texts):
        at = f"{param}[{index}]" if isinstance(value, list) else param
        if isinstance(text, (int, list)) and not isinstance(text, bool):
            raise UnsupportedFeature(f"{param} as token ids is not supported; send text", param)
        if not isinstance(text, str):
            raise InvalidRequest(f"{at}: must be a string or a list of strings, got {_kind(text)}", at)
        if not text:
            raise InvalidRequest(f"{at} is an empty string", at)
    return list(texts)


def _kind(value: object) -> str:
    """JSON's name for a value's type."""
    names = {type(None): "null", bool: "a boolean", str: "a string", list: "an array", dict: "an object"}
    return names.get(type(value), "a number")
