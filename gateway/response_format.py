"""OpenAI's `response_format` -> the guide that the worker follows."""

from __future__ import annotations

from typing import Any

from contracts.guide import Guide, GuideError, read_guide
from gateway.errors import InvalidRequest, UnsupportedFeature, shown

_FORMAT = "response_format"
_SCHEMA = "response_format.json_schema.schema"


def read_response_format(value: Any) -> Guide | None:
    """None: any text. Without `strict` what can't be enforced is left out of a schema, with it it's refused, by the
    worker. Raises InvalidRequest."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise InvalidRequest(f"{_FORMAT} = {shown(value)}, must be an object with a type", _FORMAT)
    match value.get("type"):
        case "text":
            return None
        case "json_object":
            return read_guide({"guided_json": True})
        case "json_schema":
            return _schema_guide(value.get("json_schema"))
        case str(other):
            raise UnsupportedFeature(f"{_FORMAT} of type {shown(other)} is not supported", f"{_FORMAT}.type")
        case other:
            raise InvalidRequest(
                f"{_FORMAT}.type = {shown(other)}, must be one of text, json_object, json_schema",
                f"{_FORMAT}.type",
            )


def _schema_guide(value: Any) -> Guide | None:
    if not isinstance(value, dict) or not isinstance(value.get("schema"), dict):
        raise InvalidRequest(f"{_SCHEMA} is missing or no object", _SCHEMA)
    strict = value.get("strict")
    if strict is not None and not isinstance(strict, bool):
        raise InvalidRequest(
            f"{_FORMAT}.json_schema.strict must be true or false", f"{_FORMAT}.json_schema.strict"
        )
    try:
        return read_guide({"guided_json": value["schema"], "guided_lenient": not strict})
    except GuideError as exc:
        raise InvalidRequest(str(exc).replace("guided_json", _SCHEMA, 1), _SCHEMA) from exc
