"""The plan's base class, and pydantic's findings in the words of `contracts.checked_yaml`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from contracts.checked_yaml import in_words, path_of

KIND = "kind"
"""Where a key takes one of several forms, this key inside it says which."""


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


def findings(error: ValidationError, raw: Any, schema: Mapping[str, Any]) -> list[str]:
    """One sentence for each: the key's path as the file has it, its value, what is allowed.

    `schema`: the JSON schema of the whole document.
    """
    return list(dict.fromkeys(_finding(item, raw, schema) for item in error.errors()))


def _finding(item: Any, raw: Any, schema: Mapping[str, Any]) -> str:
    location = item["loc"]
    written = as_written(location, raw)
    if item["type"] == "union_tag_invalid":
        allowed = item["ctx"]["expected_tags"].replace("'", "")
        return f"{path_of((*written, KIND))} = {item['ctx']['tag']!r}, must be one of {allowed}"
    if item["type"] == "union_tag_not_found":
        kinds = ", ".join(_at(schema, location, schema).get("discriminator", {}).get("mapping", {}))
        if isinstance(item["input"], dict):
            return f"{path_of((*written, KIND))} is missing, must be one of {kinds}"
        return f"{path_of(written)} = {item['input']!r}, must be a mapping with `kind`, one of {kinds}"
    if item["type"] in ("too_short", "too_long"):
        here = _at(schema, location, schema)
        span = f"{here.get('minItems', 0)} to {here.get('maxItems', 'any number')}"
        return f"{path_of(written)} has {item['ctx']['actual_length']} entries, must have {span}"
    schemas = dict(_at(schema, location[:-1], schema).get("properties", {}))
    if location and written and location[-1] in schemas:
        schemas[str(written[-1])] = schemas[location[-1]]
    return in_words({**item, "loc": written}, schemas)


def as_written(location: Sequence[str | int], raw: Any) -> tuple[str | int, ...]:
    """pydantic's place without the names of the forms that it chose, which the file only has as values of `kind`.

    ("load", "open", "shape", "hold", "rate_per_s") -> ("load", "shape", "rate_per_s").
    """
    written: list[str | int] = []
    here = raw
    for part in location:
        if isinstance(here, dict) and part not in here and here.get(KIND) == part:
            continue
        if not isinstance(here, dict | list):
            break  # a short form: `prompt_tokens: 64` for a mapping
        written.append(part)
        here = _inside(here, part)
    return tuple(written)


def _inside(here: Any, part: str | int) -> Any:
    try:
        return here[part]
    except (KeyError, IndexError, TypeError):
        return None


def _at(
    schema: Mapping[str, Any], location: Sequence[str | int], root: Mapping[str, Any]
) -> Mapping[str, Any]:
    """The JSON schema at pydantic's place; {} where there is none."""
    here: Mapping[str, Any] = _resolved(schema, root)
    for part in location:
        if isinstance(part, int):
            inner = here.get("items", {})
        elif part in here.get("properties", {}):
            inner = here["properties"][part]
        else:
            inner = {"$ref": here.get("discriminator", {}).get("mapping", {}).get(part, "")}
        here = _resolved(inner, root)
    return here


def _resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    for alternative in schema.get("anyOf", ()):
        if alternative.get("type") != "null":
            schema = alternative
            break
    if reference := schema.get("$ref", ""):
        return _resolved(root.get("$defs", {}).get(reference.rsplit("/", 1)[-1], {}), root)
    return schema if "$ref" not in schema else {}
