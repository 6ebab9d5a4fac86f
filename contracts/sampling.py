"""The `sampling_parameters` tensor: one JSON object, in the names of Triton's vLLM backend.

Read by the bridge (which refuses what is wrong) and written by the gateway, so it lives between them.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from contracts.guide import KEYS as GUIDE_KEYS
from contracts.guide import Guide, GuideError, guide_values, read_guide

MAX_STOPS = 16
MAX_STOP_CHARS = 256
MAX_STOP_TOKENS = 64
MAX_SEED = 2**63 - 1
MAX_TOKEN_ID = 2**24 - 1
"""Above every vocabulary. The worker refuses what is above its own."""
MAX_LOGIT_BIASES = 300
MAX_LOGPROBS = 20
DEFAULT_MAX_TOKENS = 16

# Known to vLLM, not done here: refused by name unless the value asks for nothing.
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "best_of": (None, 1),
    "prompt_logprobs": (None, False, 0),
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
    presence_penalty: float = 0.0
    """Taken once from the logit of each token that the output holds already."""
    frequency_penalty: float = 0.0
    """Taken as often as the output holds the token."""
    repetition_penalty: float = 1.0
    """Divides positive logits of tokens of prompt and output, multiplies negative ones."""
    min_p: float = 0.0
    """Drops tokens less likely than this share of the likeliest one's probability."""
    min_tokens: int = 0
    """No end of sequence, stop token or stop string before so many tokens; `max_tokens` and a guide win."""
    stop_token_ids: tuple[int, ...] = ()
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, added to its logit)."""
    logprobs: int | None = None
    """None: none; 0: of the chosen token alone; n: of the n likeliest ones as well."""
    guide: Guide | None = None


_KNOWN = (
    "max_tokens", "temperature", "top_p", "top_k", "seed", "stop", "ignore_eos", "n", "presence_penalty",
    "frequency_penalty", "repetition_penalty", "min_p", "min_tokens", "stop_token_ids", "logit_bias", "logprobs",
    *GUIDE_KEYS, "guided_lenient",
)  # fmt: skip


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
            import difflib  # not above: every stub imports this module, and difflib is 1 ms of its start

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
        presence_penalty=_float(given, "presence_penalty", -2.0, 2.0, 0.0),
        frequency_penalty=_float(given, "frequency_penalty", -2.0, 2.0, 0.0),
        repetition_penalty=_float(given, "repetition_penalty", 0.0, 100.0, 1.0, above_low=True),
        min_p=_float(given, "min_p", 0.0, 1.0, 0.0),
        min_tokens=_int(given, "min_tokens", 0, 2**31 - 1),
        stop_token_ids=_stop_token_ids(given.get("stop_token_ids", [])),
        logit_bias=_logit_bias(given.get("logit_bias", {})),
        logprobs=_logprobs(given),
        guide=_guide(given),
    )


def sampling_values(sampling: SamplingParams) -> dict[str, Any]:
    """The JSON values that `check_sampling` makes these parameters of."""
    values = {key: value for key, value in msgspec.structs.asdict(sampling).items() if value is not None}
    values["logit_bias"] = {str(token_id): bias for token_id, bias in sampling.logit_bias}
    guide = values.pop("guide", None)
    plain: dict[str, Any] = msgspec.to_builtins(values)
    return plain | (guide_values(guide) if guide else {})


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


def _stop_token_ids(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > MAX_STOP_TOKENS:
        raise SamplingError(
            f"stop_token_ids = {_shown(value)}, must be a list of at most {MAX_STOP_TOKENS} token ids"
        )
    return tuple(_int({"stop_token_ids": token_id}, "stop_token_ids", 0, MAX_TOKEN_ID) for token_id in value)


def _logit_bias(value: Any) -> tuple[tuple[int, float], ...]:
    if not isinstance(value, dict):
        raise SamplingError(f"logit_bias = {_shown(value)}, must be an object of token ids and numbers")
    if len(value) > MAX_LOGIT_BIASES:
        raise SamplingError(f"logit_bias has {len(value)} entries, at most {MAX_LOGIT_BIASES} are allowed")
    biases: dict[int, float] = {}
    for key, bias in value.items():
        is_id = isinstance(key, str) and key.isascii() and key.isdigit() and len(key) <= 9
        if not is_id or int(key) > MAX_TOKEN_ID:
            raise SamplingError(
                f"logit_bias has the key {_shown(key)}, must be a token id from 0 to {MAX_TOKEN_ID}"
            )
        biases[int(key)] = _float({"logit_bias": bias}, "logit_bias", -100.0, 100.0, 0.0)
    return tuple(biases.items())


def _logprobs(values: dict[str, Any]) -> int | None:
    if values.get("logprobs", False) is False:
        return None
    return _int(values, "logprobs", 0, MAX_LOGPROBS)


def _guide(values: dict[str, Any]) -> Guide | None:
    try:
        return read_guide(values)
    except GuideError as exc:
        raise SamplingError(str(exc)) from exc


def _shown(value: Any) -> str:
    """The value as JSON, cut: an error text must not carry a megabyte back."""
    try:
        text = msgspec.json.encode(value).decode()
    except (msgspec.MsgspecError, TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
