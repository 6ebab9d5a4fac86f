"""What an answer must look like: the `guided_*` keys of `sampling_parameters`, checked as far as text can be.

Whether a schema, expression or grammar can be compiled only the worker knows (`worker/grammar.py`).
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

MAX_GUIDE_BYTES = 32 * 1024
"""Compiling that much takes the worker 0.1 s in the worst case found, and its streams wait for it."""
MAX_CHOICES = 512

ANY_OBJECT = '{"type":"object"}'

GuideKind = Literal["json", "regex", "grammar", "choice"]
KEYS: dict[str, GuideKind] = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_grammar": "grammar",
    "guided_choice": "choice",
}


class GuideError(ValueError):
    """A guide is wrong; the text names the key and what it must be."""


class Guide(msgspec.Struct, frozen=True, array_like=True):
    """One constraint on the whole output."""

    kind: GuideKind
    text: str
    """json: a JSON schema; regex: a regular expression (Rust's syntax, matched against all of the output);
    grammar: Lark's notation; choice: a JSON list of texts, one of which the output is."""
    is_lenient: bool = False
    """json: leave out what the schema asks for and the library can't enforce, instead of refusing it."""


def read_guide(values: dict[str, Any]) -> Guide | None:
    """The guide among checked JSON values, None where there is none. Raises GuideError."""
    given = [key for key in KEYS if values.get(key) is not None]
    if len(given) > 1:
        raise GuideError(f"{given[0]} and {given[1]} are both given, one output can follow only one")
    is_lenient = values.get("guided_lenient")
    if is_lenient is not None and not isinstance(is_lenient, bool):
        raise GuideError("guided_lenient must be true or false")
    if not given:
        return None
    key = given[0]
    text = _TEXT_OF[KEYS[key]](key, values[key])
    size = len(text.encode())
    if size > MAX_GUIDE_BYTES:
        raise GuideError(f"{key} has {size} bytes, at most {MAX_GUIDE_BYTES} are allowed")
    return Guide(KEYS[key], text, bool(is_lenient))


def guide_values(guide: Guide) -> dict[str, Any]:
    """The keys that `read_guide` makes this guide of."""
    key = next(key for key, kind in KEYS.items() if kind == guide.kind)
    value = msgspec.json.decode(guide.text) if guide.kind == "choice" else guide.text
    return {key: value} | ({"guided_lenient": True} if guide.is_lenient else {})


def _schema(key: str, value: Any) -> str:
    if isinstance(value, str):
        value = _decoded(key, value)
    if value is True or value == {}:
        return ANY_OBJECT
    if not isinstance(value, dict):
        raise GuideError(f"{key} must be a JSON schema: an object, its JSON text, or true for any object")
    return _encoded(key, value)


def _decoded(key: str, text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as exc:
        raise GuideError(f"{key} is no valid JSON: {exc}") from exc


def _encoded(key: str, value: Any) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as exc:
        raise GuideError(f"{key} can't be written as JSON: {exc}") from exc


def _plain(key: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise GuideError(f"{key} must be a text that is not empty")
    return value


def _choices(key: str, value: Any) -> str:
    is_list = isinstance(value, list) and all(isinstance(text, str) and text for text in value)
    if not is_list or not 1 <= len(value) <= MAX_CHOICES:
        raise GuideError(f"{key} must be a list of 1 to {MAX_CHOICES} texts that are not empty")
    return _encoded(key, value)


_TEXT_OF = {"json": _schema, "regex": _plain, "grammar": _plain, "choice": _choices}
