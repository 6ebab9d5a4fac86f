"""What config.pbtxt's `parameters` say about how a model is served: named like ServedModel's fields, checked here.

Other parameters belong to the model's own code and are left alone, but one that is nearly ours is a slip.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from typing import Any, get_args

from contracts.stack import KVPrecision, Precision
from tidegate.launch_errors import RepositoryInvalid

MAX_BYTES = 2**50
MAX_TOKENS = 2**31 - 1

_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(?:([kmgt])(i?)b?|b)?\s*", re.IGNORECASE)
_NEARLY = 0.85


def read_served_options(model: str, parameters: Mapping[str, str]) -> dict[str, Any]:
    """Fields of ServedModel that `parameters` set. Raises RepositoryInvalid with key, value and range."""
    for key in parameters.keys() - READERS.keys():
        if close := difflib.get_close_matches(key, READERS, n=1, cutoff=_NEARLY):
            raise RepositoryInvalid(
                f"model {model!r}: parameter {key!r} is unknown; did you mean {close[0]!r}?"
            )
    return {key: _read(model, key, parameters[key]) for key in READERS if key in parameters}


def _read(model: str, key: str, raw: str) -> Any:
    try:
        return READERS[key](raw)
    except ValueError as exc:
        raise RepositoryInvalid(f"model {model!r}: parameter {key} = {raw!r}, must be {exc}") from None


def _one_of(*known: str) -> Callable[[str], str]:
    def read(raw: str) -> str:
        if raw not in known:
            raise ValueError(f"one of {', '.join(known)}")
        return raw

    return read


def _size(raw: str) -> int:
    match = _SIZE.fullmatch(raw)
    number = 0.0
    if match:
        power = " kmgt".index((match[2] or " ").lower())
        number = float(match[1]) * (1024 if match[3] else 1000) ** power
    if match is None or number > MAX_BYTES:
        raise ValueError(f"a size like 512MiB or 2GiB, 0 to {MAX_BYTES} bytes")
    return int(number)


def _tokens(raw: str) -> int:
    if not raw.isdecimal() or int(raw) > MAX_TOKENS:
        raise ValueError(f"a whole number, 0 to {MAX_TOKENS}")
    return int(raw)


def _yes_or_no(raw: str) -> bool:
    if raw.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return raw.lower() == "true"


READERS: dict[str, Callable[[str], Any]] = {
    "precision": _one_of(*get_args(Precision)),
    "kv_precision": _one_of(*get_args(KVPrecision)),
    "max_context_tokens": _tokens,
    "max_output_tokens": _tokens,
    **dict.fromkeys(
        ("kv_floor_bytes", "kv_ceiling_bytes", "tenant_ceiling_bytes", "prefix_cache_bytes"), _size
    ),
    "pinned": _yes_or_no,
}
