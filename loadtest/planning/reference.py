"""The plan's keys for people and for editors, made from the code: `python -m loadtest.planning.reference markdown`.

`docs/loadtest-plan.md` and `examples/loadtest/plan.schema.json` are what it prints, and a test keeps them so.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from contracts.checked_yaml import allowed_range
from loadtest.planning import launch, lengths, load, plan, users

HEAD = """# The keys of a load-test plan

Made from the code by `python -m loadtest.planning.reference markdown`. An unknown key, a key twice and a value out
of range are refused, all at once. Where a key takes one of several forms, `kind` says which.
"""

CHAPTERS: tuple[tuple[str, tuple[type[BaseModel], ...]], ...] = (
    ("The plan", (plan.Plan, plan.Target, plan.WarmUp, plan.Generator, plan.Memory)),
    ("`launch`", (launch.Launch, launch.Backups)),
    ("`load`", (load.OpenLoop, load.ClosedLoop, load.Replay)),
    (
        "`load.shape`",
        (load.Hold, load.Stages, load.Stage, load.Spike, load.Wave, load.Day, load.Recorded),
    ),
    ("`load.arrivals`", (load.Constant, load.Poisson, load.Gamma)),
    (
        "`users`",
        (
            users.ChatUser,
            users.GenerateUser,
            users.EmbedUser,
            users.TensorUser,
            users.TensorInput,
            users.Turns,
        ),
    ),
    (
        "Lengths: `prompt_tokens`, `output_tokens`",
        (lengths.Fixed, lengths.Uniform, lengths.Lognormal, lengths.FromTrace, lengths.Mix, lengths.Part),
    ),
)


def markdown() -> str:
    parts = [HEAD]
    for title, models in CHAPTERS:
        parts.append(f"## {title}\n")
        parts += ["\n".join(_section(model)) + "\n" for model in models]
    return "\n".join(parts)


def schema() -> dict[str, Any]:
    """JSON schema, with the short forms that the plan takes beside it: a number for a length or for turns."""
    made = plan.Plan.model_json_schema()
    short: dict[str, Any] = _with_short_forms(made)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **short}


def _with_short_forms(node: Any) -> Any:
    if isinstance(node, list):
        return [_with_short_forms(each) for each in node]
    if not isinstance(node, dict):
        return node
    inner = {key: _with_short_forms(value) for key, value in node.items()}
    if "fixed" in node.get("discriminator", {}).get("mapping", {}):
        return _or_number(inner, lengths.MAX_TOKENS)
    if node.get("$ref") == "#/$defs/Turns":
        return _or_number(inner, users.MAX_TURNS)
    return inner


def _or_number(node: dict[str, Any], most: int) -> dict[str, Any]:
    about: dict[str, Any] = {key: node.pop(key) for key in ("default", "description") if key in node}
    return {"anyOf": [{"type": "integer", "minimum": 1, "maximum": most}, node], **about}


def _section(model: type[BaseModel]) -> Iterator[str]:
    made = model.model_json_schema()
    kind = made["properties"].get("kind", {}).get("const")
    yield f"### {f'kind: {kind}' if kind else model.__name__}\n"
    yield f"{_line(made.get('description', ''))}\n"
    keys = {name: key for name, key in made["properties"].items() if name != "kind"}
    if not keys:
        return
    yield "| key | default | allowed | meaning |"
    yield "|---|---|---|---|"
    for name, key in keys.items():
        is_section = "$ref" in key and isinstance(key.get("default"), dict) and name != "turns"
        default = "its own" if is_section else f"`{_default(key)}`"
        if name in made.get("required", ()):
            default = "required"
        yield f"| `{name}` | {default} | {_allowed(key, made)} | {_line(key.get('description', ''))} |"


def _default(key: Mapping[str, Any]) -> str:
    value = key.get("default")
    if isinstance(value, dict) and value.keys() == {"kind", "tokens"}:
        return str(value["tokens"])
    return "none" if value is None else json.dumps(value)


def _allowed(key: Mapping[str, Any], made: Mapping[str, Any]) -> str:
    for each in (key, *key.get("anyOf", ())):
        if "enum" in each:
            return ", ".join(f"`{value}`" for value in each["enum"])
        if each.get("type") == "array":
            return f"{each.get('minItems', 0)} to {each.get('maxItems', 'any number of')} entries"
        if reference := each.get("discriminator", {}).get("mapping"):
            return "kind: " + ", ".join(f"`{kind}`" for kind in reference)
        if "pattern" in each:
            return f"`{each['pattern'].replace('|', chr(92) + '|')}`"
        if each.get("type") == "boolean":
            return "`true`, `false`"
        if each.get("format") == "path":
            return "a path"
        if "$ref" in each:
            return f"[{each['$ref'].rsplit('/', 1)[-1]}](#{each['$ref'].rsplit('/', 1)[-1].lower()})"
    return allowed_range(key) or "text"


def _line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    print(markdown() if sys.argv[1:] == ["markdown"] else json.dumps(schema(), indent=1))
