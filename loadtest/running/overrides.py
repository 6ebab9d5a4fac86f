"""`--set load.shape.rate_per_s=5`: one value of a plan, changed for one run. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from contracts.checked_yaml import load_yaml
from loadtest.planning.plan import PlanError


def override(text: str, settings: Sequence[str]) -> str:
    """The plan with its settings, as YAML; without any, the text as it is. Raises PlanError."""
    if not settings:
        return text
    try:
        raw = load_yaml(text)
    except ValueError as exc:
        raise PlanError([str(exc)]) from exc
    for setting in settings:
        path, separator, value = setting.partition("=")
        if not separator or not path.strip():
            raise PlanError([f"--set {setting}: must read like load.shape.rate_per_s=5"])
        try:
            decoded = load_yaml(value)
        except ValueError as exc:
            raise PlanError([f"--set {setting}: {exc}"]) from exc
        _put(raw, path.strip().split("."), decoded, setting)
    changed: str = yaml.safe_dump(raw, sort_keys=False, allow_unicode=True)
    return f"# with {', '.join(settings)}\n{changed}"


def _put(raw: Any, keys: list[str], value: Any, setting: str) -> None:
    """Sections that are missing are made; what a key may be called is for the plan's own check to say."""
    at = raw
    for key in keys[:-1]:
        at = _inner(at, key, setting)
    last = keys[-1]
    if isinstance(at, list):
        at[_index(at, last, setting)] = value
    elif isinstance(at, dict):
        at[last] = value
    else:
        raise PlanError([f"--set {setting}: {keys[-2] if len(keys) > 1 else 'the plan'} has no keys"])


def _inner(at: Any, key: str, setting: str) -> Any:
    if isinstance(at, list):
        return at[_index(at, key, setting)]
    if isinstance(at, dict):
        return at.setdefault(key, {})
    raise PlanError([f"--set {setting}: there is nothing below {key}"])


def _index(at: list[Any], key: str, setting: str) -> int:
    if not key.isdecimal() or int(key) >= len(at):
        raise PlanError([f"--set {setting}: {key} is no place in a list of {len(at)}; the first is 0"])
    return int(key)
