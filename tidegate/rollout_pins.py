"""The weights of the version before, kept in the pool while a rollout could go back to it; after a restart too."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from gateway import rollout
from gateway.route_table import KIND
from ledger.revisions import RevisionStore
from ledger.store import Store
from scaler.node_client import NodeClient


async def pin(control_socket: str, models: Collection[str]) -> None:
    """Raises ScaleError."""
    node = NodeClient(control_socket)
    try:
        for weights in (await node.status()).weights:
            if not weights.is_pinned and any(model in models for model in weights.models):
                await node.pin_weights(weights.key)
    finally:
        await node.close()


async def pin_previous_versions(control_socket: str, ledger_url: str) -> None:
    """Those of every rollout in the ledger. Raises ScaleError, LedgerError."""
    if models := await asyncio.to_thread(previous_models, ledger_url):
        await pin(control_socket, models)


def previous_models(ledger_url: str) -> set[str]:
    """Raises LedgerError."""
    store = Store.open(ledger_url)
    try:
        latest = RevisionStore(store).latest(KIND)
    finally:
        store.close()
    services = rollout.read(latest.text if latest else "").get("services") or {}
    return {
        version.get("model") or version["name"]
        for route in services.values()
        for version in route.get("versions", ())
        if version["name"] == (route.get("rollout") or {}).get("previous")
    }
