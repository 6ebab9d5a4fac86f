"""The `sampling_parameters` tensor: one JSON object, in the names of Triton's vLLM backend.

Read by the bridge (which refuses what is wrong) and written by the gateway, so it lives between them.
"""

from __future__ import annotations

import difflib
import math
from typing import Any

import msgspec

MAX_STOPS = 16
MAX_STOP_CHARS = 256
MAX_SEED = 2**63 - 1
DEFAULT_MAX_TOKENS = 16

# Known to vLLM, not done here yet: refused by name unless the value asks for nothing.
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "best_of": (None, 1),
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "logit_bias": (None, {}),
    "logprobs": (None, False, 0),
    "prompt_logprobs": (None, False, 0),
    "min_p": (None, 0),
    "min_tokens": (None, 0),
    "stop_token_ids": (None, []),
    "guided_json": (None,),
    "guided_regex": (None,),
}


class SamplingError(ValueError):
    """A sampling setting is wrong; the text names key, value and allowed range."""


class SamplingParams(msgspec.Struct, frozen=True, array_like=True):
    """How to choose tokens and when to stop."""

    max_tokens: int = DEFAULT_MAX_TOKENS
    temperature: float = 1.0
    """0: greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0: all tokens."""
    seed: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False


_KNOWN = ("max_tokens", "temperature", "top_p", "top_k", "seed", "stop", "ignore_eos", "n")


def parse_sampling(raw: bytes | str) -> SamplingParams:
    """JSON text -> checked parameters. null means the default. Raises SamplingError."""
    try:
        values = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as exc:
        raise SamplingError(f"sampling_parameters is no valid JSON: {exc}") from exc
    if not isinstance(values, dict):
        raise SamplingError(f"sampling_parameters must be a JSON object, got {type(values).__name__}")
    return check_sampling(values)


def check_sampling(values: dict[str, Any]) -> SamplingParams:
    """Values as JSON gives them -> checked parameters. Raises SamplingError."""
    for key, value in values.items():
        if key in _KNOWN:
            continue
        if key not in _UNSUPPORTED:
            near = difflib.get_close_matches(key, (*_KNOWN, *_UNSUPPORTED), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(sorted(_KNOWN))}"
            raise SamplingError(f"unknown sampling key {_shown(key)}{hint}")
        if value not in _UNSUPPORTED[key]:
            raise SamplingError(f"{key} = {_shown(value)} is not supported")
    given = {key: value for key, value in values.items() if value is not None}
    _int(given, "n", 1, 1, 1)
    return SamplingParams(
        max_tokens=_int(given, "max_tokens", 1, 2**31 - 1, DEFAULT_MAX_TOKENS),
        temperature=_float(given, "temperature", 0.0, 2.0, 1.0),
        top_p=_float(given, "top_p", 0.0, 1.0, 1.0, above_low=True),
        top_k=max(0, _int(given, "top_k", -1, 2**31 - 1, 0)),
        seed=_int(given, "seed", -MAX_SEED - 1, MAX_SEED) if "seed" in given else None,
        stop=_stop(given.get("stop", [])),
        ignore_eos=_bool(given, "ignore_eos"),
    )


def _int(values: dict[str, Any], key: str, low: int, high: int, default: int = 0) -> int:
    value = values.get(key, default)
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not whole or not low <= value <= high:
        raise SamplingError(f"{key} = {_shown(value)}, must be a whole number from {low} to {high}")
    return int(value)


def _float(
    values: dict[str, Any], key: str, low: float, high: float, default: float, *, above_low: bool = False
) -> float:
    value = values.get(key, default)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not low <= value <= high or (above_low and value == low):
        span = f"above {low:g} and at most {high:g}" if above_low else f"from {low:g} to {high:g}"
        raise SamplingError(f"{key} = {_shown(value)}, must be a number {span}")
    return float(value)


def _bool(values: dict[str, Any], key: str) -> bool:
    value = values.get(key, False)
    if not isinstance(value, bool):
        raise SamplingError(f"{key} = {_shown(value)}, must be true or false")
    return value


def _stop(value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise SamplingError(f"stop = {_shown(value)}, must be a string or a list of strings")
    if len(stops) > MAX_STOPS:
        raise SamplingError(f"stop has {len(stops)} strings, at most {MAX_STOPS} are allowed")
    for stop in stops:
        if not 1 <= len(stop) <= MAX_STOP_CHARS:
            raise SamplingError(f"stop has a string of {len(stop)} characters, must be 1 to {MAX_STOP_CHARS}")
    return tuple(stops)


def _shown(value: Any) -> str:
    """The value as JSON, cut: an error text must not carry a megabyte back."""
    try:
        text = msgspec.json.encode(value).decode()
    except (msgspec.MsgspecError, TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
