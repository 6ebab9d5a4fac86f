"""Reads YAML strictly, and says pydantic's findings as `key = value, must be ...`. Nothing here knows a policy."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

MAX_SHOWN = 80
MAX_VALUES = 50_000
"""With every alias written out: ten lines of aliases to aliases are a billion values."""


class BadKey(yaml.YAMLError):
    """Twice in one mapping, where YAML's own loaders take the last in silence; or no word: they raise TypeError."""


class _StrictLoader(yaml.SafeLoader):
    """Numbers as in YAML 1.2, where 10:00 is text and not 600, and so is a date."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise BadKey(f"line {line}: a key has to be a word, not a list or a mapping")
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise BadKey(f"line {line}: the key {key!r} stands twice in one mapping")
            seen.add(key)
        return super().construct_mapping(node, deep)


_INT = re.compile(r"[-+]?[0-9]+$")
_FLOAT = re.compile(
    r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?$|[-+]?[0-9]+[eE][-+]?[0-9]+$|[-+]?\.inf$|\.nan$"
)
_NUMBERS = {"tag:yaml.org,2002:int": _INT, "tag:yaml.org,2002:float": _FLOAT}
_StrictLoader.yaml_implicit_resolvers = {
    first: [
        (tag, _NUMBERS.get(tag, pattern))
        for tag, pattern in resolvers
        if tag != "tag:yaml.org,2002:timestamp"
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def load_yaml(text: str) -> Any:
    """Raises ValueError with the line."""
    try:
        loader = _StrictLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        if (size := _size(node, {})) > MAX_VALUES:
            raise ValueError(f"{size:,} values with its aliases written out, at most {MAX_VALUES:,} are read")
        return loader.construct_document(node)
    except RecursionError as exc:
        raise ValueError("no valid YAML: nested too deep") from exc
    except yaml.MarkedYAMLError as exc:
        where = f"line {exc.problem_mark.line + 1}: " if exc.problem_mark else ""
        raise ValueError(f"no valid YAML: {where}{exc.problem}") from exc
    except yaml.YAMLError as exc:
        raise ValueError(f"no valid YAML: {exc}") from exc


def _size(node: yaml.Node, known: dict[yaml.Node, int]) -> int:
    """How many values stand in it. Raises RecursionError for a node that holds itself."""
    if node not in known:
        inner: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            inner = [each for pair in node.value for each in pair]
        elif isinstance(node, yaml.SequenceNode):
            inner = node.value
        known[node] = 1 + sum(_size(each, known) for each in inner)
    return known[node]


def path_of(location: Sequence[str | int]) -> str:
    """("models", "chat", "reservations", 0, "zone") -> "models.chat.reservations[0].zone"."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "policy"


def in_words(error: Any, schemas: Mapping[str, Any]) -> str:
    """One of pydantic's `errors()`: "models.chat.cooldown_out_s = -1, must be from 0 to 604800".

    `schemas`: the JSON schemas of the keys that may stand at that place.
    """
    path, kind = path_of(error["loc"]), error["type"]
    value = repr(error["input"])
    value = value if len(value) <= MAX_SHOWN else f"{value[:MAX_SHOWN]}..."
    key = str(error["loc"][-1]) if error["loc"] else ""
    if kind == "extra_forbidden":
        near = difflib.get_close_matches(key, schemas, n=1)
        hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(sorted(schemas))}"
        return f"{path} = {value}: no such key{hint}"
    if kind == "missing":
        return f"{path} is missing, must be given"
    if kind == "value_error":
        said = str(error["ctx"]["error"])
        # A rule over several keys names them itself; its input is the whole mapping.
        return f"{path}: {said}" if isinstance(error["input"], dict) else f"{path} = {value}: {said}"
    if allowed := allowed_range(schemas.get(key, {})):
        return f"{path} = {value}, must be {allowed}"
    return f"{path} = {value}: {error['msg'][0].lower()}{error['msg'][1:]}"


def allowed_range(schema: Mapping[str, Any]) -> str:
    """ "above 0 and at most 1", of a JSON schema for a number; "" when it has no bounds."""
    kinds = [schema, *schema.get("anyOf", [])]
    bounds = next((kind for kind in kinds if {"minimum", "exclusiveMinimum"} & kind.keys()), None)
    if bounds is None:
        return ""
    whole = "a whole number " if bounds.get("type") == "integer" else ""
    low = f"from {bounds['minimum']:g}" if "minimum" in bounds else f"above {bounds['exclusiveMinimum']:g}"
    if "exclusiveMaximum" in bounds:
        return f"{whole}{low} and below {bounds['exclusiveMaximum']:g}"
    if "maximum" not in bounds:
        return whole + low
    return f"{whole}{low} {'to' if 'minimum' in bounds else 'and at most'} {bounds['maximum']:g}"
