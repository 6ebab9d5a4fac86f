"""A rollout as changes of the routes: pure, from one document to the next. The numbers are percent of the calls.

Both versions stay in the routes from start to the next start: with the weights of both resident, going back is one
revision, not a load.
"""

from __future__ import annotations

import copy
from typing import Any

import yaml

from contracts.checked_yaml import load_yaml

Document = dict[str, Any]


class RolloutRefused(ValueError):
    """The text says why, and what to do."""


def read(text: str) -> Document:
    found = load_yaml(text) if text.strip() else {}
    return found if isinstance(found, dict) else {}


def write(document: Document) -> str:
    text: str = yaml.safe_dump(document, sort_keys=False, default_flow_style=None, allow_unicode=True)
    return text


def start(document: Document, service: str, to: str, percent: float, model: str | None = None) -> Document:
    """`to` gets `percent` of the calls that the present version has, its model is `model` (or of its own name)."""
    changed, route = _service(document, service)
    rollout = route.get("rollout")
    if rollout is not None and 0 < _percent(route, rollout["next"]) < 100:
        raise RolloutRefused(
            f"{service}: {rollout['next']} is being rolled out at {_percent(route, rollout['next']):g} %; "
            "promote it or roll it back first"
        )
    present = [version for version in route["versions"] if version["percent"] > 0]
    if len(present) != 1:
        shares = ", ".join(f"{version['name']} {version['percent']:g} %" for version in present)
        raise RolloutRefused(
            f"{service} is split ({shares}) by routes.yaml; a rollout starts from one version at 100 %, "
            "so give one 100 there first, or change the percentages there"
        )
    if present[0]["name"] == to:
        raise RolloutRefused(f"{service}: {to} has all calls already")
    found = next((version for version in route["versions"] if version["name"] == to), None)
    if found is None:
        found = {"name": to, "percent": 0}
        route["versions"].append(found)
    if model is not None:
        found["model"] = model
    route["rollout"] = {"previous": present[0]["name"], "next": to}
    _share(route, percent)
    return changed


def set_percent(document: Document, service: str, percent: float) -> Document:
    """The new version's share."""
    changed, route = _service(document, service)
    _need_rollout(service, route)
    _share(route, percent)
    return changed


def promote(document: Document, service: str) -> Document:
    """All calls to the new version; the previous one stays, at 0 %."""
    return set_percent(document, service, 100)


def roll_back(document: Document, service: str) -> Document:
    """All calls to the previous version."""
    return set_percent(document, service, 0)


def finish(document: Document, service: str) -> Document:
    """Without the versions that have no share: their models need not be served any more. No way back."""
    changed, route = _service(document, service)
    kept = [version for version in route["versions"] if version["percent"] > 0]
    if len(kept) == len(route["versions"]):
        raise RolloutRefused(f"{service}: every version has a share; promote or roll back first")
    route["versions"] = kept
    route.pop("rollout", None)
    return changed


def status(document: Document, service: str) -> dict[str, Any]:
    """{"service", "previous", "next", "percent"}, the last three None without a rollout."""
    route = (document.get("services") or {}).get(service) or {}
    rollout = route.get("rollout")
    if rollout is None:
        return {"service": service, "previous": None, "next": None, "percent": None}
    return {"service": service, **rollout, "percent": _percent(route, rollout["next"])}


def _service(document: Document, service: str) -> tuple[Document, Document]:
    """A copy of the document, and its service, made where there was none."""
    changed = copy.deepcopy(document)
    services = changed.setdefault("services", {})
    if not services.get(service):
        services[service] = {"versions": [{"name": service, "percent": 100}]}
    return changed, services[service]


def _need_rollout(service: str, route: Document) -> None:
    if route.get("rollout") is None:
        raise RolloutRefused(
            f"{service}: no rollout; `tidegate rollout start {service} --to VERSION` begins one"
        )


def _share(route: Document, percent: float) -> None:
    if not 0 <= percent <= 100:
        raise RolloutRefused(f"percent = {percent:g}, must be from 0 to 100")
    shares = {route["rollout"]["previous"]: _plain(100 - percent), route["rollout"]["next"]: _plain(percent)}
    for version in route["versions"]:
        version["percent"] = shares.get(version["name"], 0)


def _plain(percent: float) -> float:
    """5 and not 5.0; 94.7 and not 94.69999999999999."""
    rounded = round(percent, 6)
    return int(rounded) if rounded == int(rounded) else rounded


def _percent(route: Document, name: str) -> float:
    return next((float(version["percent"]) for version in route["versions"] if version["name"] == name), 0.0)
