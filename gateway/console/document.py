"""All that the page shows, as one JSON document. What is not known is null."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.console.calls import WINDOW_S, CallBook, figures
from gateway.console.tally import Tally
from gateway.routes import Routes, ServiceRoute

MAX_TENANTS = 50


def model_rows(book: CallBook, scaler: Any, pending: Mapping[str, int] | None) -> list[dict[str, Any]]:
    """A row a model: those that the scaler knows, and those that were called."""
    known = {one.model: one for one in scaler.models} if scaler is not None else {}
    of_model = book.of_models()
    in_flight = book.in_flight_of()
    names = sorted({*known, *of_model, *in_flight, *(pending or {})} - {""})
    return [
        {
            "model": name,
            "in_flight": in_flight.get(name, 0),
            "pending": None if pending is None else pending.get(name, 0),
            "calls": figures(of_model.get(name, Tally()), WINDOW_S),
            "scaler": None if name not in known else scaler_row(known[name]),
        }
        for name in names
    ]


def scaler_row(status: Any) -> dict[str, Any]:
    """A ModelStatus of contracts/scaler.proto."""
    has_counts = status.HasField("counts")
    signals = status.signals
    return {
        "is_managed": status.is_managed,
        "ready": status.counts.ready if has_counts else None,
        "starting": status.counts.starting if has_counts else None,
        "draining": status.counts.draining if has_counts else None,
        "wanted": status.wanted if status.HasField("wanted") else None,
        "min": status.min_instances,
        "max": status.max_instances,
        "utilization": reading(signals.utilization),
        "queue": reading(signals.queue),
        "queue_time_s": reading(signals.queue_time_s),
        "kv_occupancy": reading(signals.kv_occupancy),
        "arrivals_per_s": reading(signals.arrivals_per_s),
        "is_saturated": status.is_saturated,
        "paused": f"by {status.pause.who}: {status.pause.why}" if status.HasField("pause") else "",
        "override": status.override.reason if status.HasField("override") else "",
        "floors": [f"{floor.num_instances}: {floor.reason}" for floor in status.floors],
        "forecast": status.forecast,
        "last_error": status.last_error,
        "decision": words_of(status.decision) if status.HasField("decision") else "",
    }


def reading(one: Any) -> float | None:
    """A Reading of contracts/scaler.proto; what is stale or missing is not known, and a ratio of nothing is 0."""
    return float(one.value) if one.quality in ("good", "idle") else None


def words_of(decision: Any) -> str:
    """The reason without "chat 2→3: " at its front, which stands beside it."""
    head, colon, rest = decision.reason.partition(": ")
    words: str = rest if colon and head.startswith(f"{decision.model} ") else decision.reason
    return words


def decision_row(one: Any) -> dict[str, Any]:
    return {
        "at_unix_s": one.at_unix_s,
        "model": one.model,
        "before": one.before,
        "wanted": one.wanted,
        "direction": one.direction,
        "cause": one.cause,
        "reason": words_of(one),
        "trouble": one.trouble,
    }


def pool(memory: Any, status: Any, arena: dict[str, Any] | None) -> dict[str, Any] | None:
    """The KV arena: bytes of all, per model, per tenant, and a map. None: the node does not tell."""
    if memory is None:
        return None
    found: dict[str, Any] = {
        "total_bytes": memory.total_bytes,
        "held_bytes": memory.held_bytes,
        "cached_bytes": memory.cached_bytes,
        "high_water_bytes": status.pool.recent_high_water_bytes if status is not None else None,
        "models": [
            {
                "model": one.model,
                "held_bytes": one.held_bytes,
                "cached_bytes": one.cached_bytes,
                "limit_bytes": one.limit_bytes,
                "num_refused": one.num_refused,
            }
            for one in memory.models
            if one.block_bytes
        ],
        "instances": [
            {
                "instance": one.instance,
                "model": one.model,
                "state": one.state,
                "in_flight": one.in_flight,
                "running": one.num_running,
                "waiting": one.num_waiting,
                "cap": one.cap,
                "preempted": one.num_preempted,
            }
            for one in memory.instances
        ],
        "map": arena,
        "tenants": [],
        "weights": [],
    }
    if status is not None:
        found["tenants"] = [
            {
                "model": model.name,
                "tenant": one.tenant,
                "leased_bytes": one.leased_bytes,
                "published_bytes": one.published_bytes,
            }
            for model in status.models
            for one in model.tenants
        ][:MAX_TENANTS]
        found["weights"] = [
            {
                "models": list(one.models),
                "num_bytes": one.num_bytes,
                "precision": one.precision,
                "is_pinned": one.is_pinned,
            }
            for one in status.weights
        ]
    return found


def route_rows(routes: Routes, services: Sequence[str], book: CallBook) -> list[dict[str, Any]]:
    """A row a service, with what its versions did in the last minutes."""
    of_version = book.of_versions()
    return [_route(name, routes.of(name), of_version) for name in services]


def _route(name: str, route: ServiceRoute, of_version: Mapping[tuple[str, str], Tally]) -> dict[str, Any]:
    rollout = route.rollout
    next_percent = next((v.percent for v in route.versions if rollout and v.name == rollout.next), 0.0)
    return {
        "service": name,
        "versions": [
            {
                "name": version.name,
                "model": version.model_name,
                "percent": version.percent,
                "calls": figures(of_version.get((name, version.name), Tally()), WINDOW_S),
            }
            for version in route.versions
        ],
        "rollout": None if rollout is None else {"previous": rollout.previous, "next": rollout.next},
        "can_roll_back": rollout is not None and next_percent > 0,
        "rules": list(_rules(route)),
    }


def _rules(route: ServiceRoute) -> list[str]:
    """What else the route says, in words."""
    found = []
    if route.long_context is not None:
        found.append(
            f"prompts above {route.long_context.above_tokens:,} tokens to {route.long_context.target}"
        )
    if route.tenants:
        found.append(", ".join(f"tenant {tenant} to {model}" for tenant, model in route.tenants.items()))
    if route.degrade is not None:
        found.append(f"while saturated {route.degrade.target or 'shorter answers'}")
    if route.shadow is not None:
        found.append(f"{route.shadow.percent:g} % copied to {route.shadow.target}")
    if route.auto_rollback is not None:
        found.append("goes back by itself when the new version does worse")
    return found
