"""Asks the running stack, its ledger, scaler and Prometheus for what the rows are decided on. Changes nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from contracts import scaler_pb2 as pb
from contracts.capacity import CapacityUnreadable, read_capacity
from contracts.stack import Stack
from gateway.config import ConfigError
from gateway.route_table import KIND
from ledger.errors import LedgerError
from ledger.revisions import Revision, RevisionStore
from ledger.store import Store
from loadtest.planning.launch import Launch
from scaler.deciding.policy import ModelPolicy, Policy
from scaler.errors import PolicyInvalid, ScaleError
from scaler.node_client import NodeClient
from scaler.serving.service_client import ScalerClient
from tidegate.launch_check.backups import LedgerCopy
from tidegate.launch_check.scaling import Bounds, ScalingEvidence
from tidegate.routes_status import served_models

HTTP_TIMEOUT_S = 10.0
MAX_REVISIONS = 1000
"""Of the routes that are looked through for a rollback."""


@dataclass(frozen=True, slots=True)
class RouteHistory:
    """Newest first; None: `trouble` says why it can't be read."""

    revisions: Sequence[Revision] | None
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class ScalerSays:
    """None: `trouble` says why not. A scaler without a policy has the text ""."""

    policy_text: str | None
    lead_s: Mapping[str, float]
    trouble: str = ""


def route_history(url: str) -> RouteHistory:
    """`url`: of the ledger, "" when none is known."""
    if not url:
        return RouteHistory(
            None, "no ledger: no stack with a gateway runs here; give --ledger-url or --run-dir"
        )
    try:
        store = Store.open(url)
        try:
            return RouteHistory(RevisionStore(store).history(KIND, limit=MAX_REVISIONS))
        finally:
            store.close()
    except LedgerError as exc:
        return RouteHistory(None, f"the ledger can't be read: {exc}")


def served_by(stack: Stack | None) -> tuple[set[str], set[str]]:
    """Models that routes may name; and those of them that Triton serves alone, with no weights of ours to pin."""
    if stack is None:
        return set(), set()
    ours = {model.name for model in stack.models}
    try:
        served = served_models(stack) if stack.gateway_http else ours
    except ConfigError:
        return ours, set()
    return served, served - ours


async def pinned_models(stack: Stack | None) -> set[str] | None:
    """Models whose weights stay in memory whatever comes; None: no node tells."""
    if stack is None or not stack.node_socket:
        return None
    node = NodeClient(stack.node_socket)
    try:
        status = await node.status()
    except ScaleError:
        return None
    finally:
        await node.close()
    return {model for weights in status.weights if weights.is_pinned for model in weights.models}


async def ask_scaler(client: ScalerClient | None) -> ScalerSays:
    """Closes the client. None: no scaler is known."""
    if client is None:
        return ScalerSays(None, {}, "no scaler runs here; `tidegate up --policy FILE` starts one")
    try:
        status = await client.status()
        if status.policy_revision == 0:
            return ScalerSays(
                "", {}, "the scaler has no policy, so it changes nothing; `tidegate scaler policy set`"
            )
        policy: pb.Policy = await client.policy()
    except ScaleError as exc:
        return ScalerSays(None, {}, f"the scaler can't be asked: {exc}")
    finally:
        await client.close()
    return ScalerSays(policy.text, {each.model: each.lead_s for each in status.models if each.lead_s > 0})


def scaling_evidence(says: ScalerSays, launch: Launch) -> ScalingEvidence:
    """The policy's bounds and the measured capacity, or why there are none."""
    if not says.policy_text:
        return ScalingEvidence(None, None, says.trouble)
    try:
        policy = Policy.parse(says.policy_text)
    except PolicyInvalid as exc:
        return ScalingEvidence(None, None, f"the policy in force can't be read: {exc}")
    bounds = {name: _bounds(of, says.lead_s.get(name), launch) for name, of in policy.models.items()}
    if launch.capacity is None:
        trouble = (
            "what instances bear was not measured; `tidegate capacity` does, launch.capacity names its file"
        )
        return ScalingEvidence(bounds, None, trouble)
    try:
        return ScalingEvidence(bounds, read_capacity(launch.capacity))
    except CapacityUnreadable as exc:
        return ScalingEvidence(bounds, None, str(exc))


def _bounds(policy: ModelPolicy, measured_lead_s: float | None, launch: Launch) -> Bounds:
    leads = (launch.lead_time_s, policy.lead_time_s, measured_lead_s)
    return Bounds(
        policy.min_instances,
        policy.max_instances,
        policy.scale_out.hold_s,
        next((lead for lead in leads if lead is not None), None),
    )


def ledger_copy(path: Path | None) -> LedgerCopy | None:
    """Opened read-only and checked whole by SQLite; the copy is not changed."""
    if path is None:
        return None
    if not path.is_file():
        return LedgerCopy(trouble=f"{path}: no such file")
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as connection:
            (found,) = connection.execute("PRAGMA integrity_check").fetchone()
            if found != "ok":
                return LedgerCopy(trouble=f"{path}: {found}")
            routes = connection.execute(
                "SELECT MAX(number) FROM revisions WHERE kind = ?", (KIND,)
            ).fetchone()[0]
            keys = connection.execute("SELECT COUNT(*) FROM keys").fetchone()[0]
    except sqlite3.Error as exc:
        return LedgerCopy(trouble=f"{path}: {exc}")
    return LedgerCopy("", path.stat().st_mtime, routes or 0, keys)


def alert_answer(url: str | None) -> tuple[Any, str]:
    """(/api/v1/rules decoded, "") or (None, why not)."""
    if url is None:
        return None, ""
    asked = f"{url.rstrip('/')}/api/v1/rules"
    try:
        reply = httpx.get(asked, timeout=HTTP_TIMEOUT_S, trust_env=False)
        reply.raise_for_status()
        return reply.json(), ""
    except (httpx.HTTPError, ValueError) as exc:
        return None, f"{asked} gives no rules: {exc!r}; is launch.prometheus right, and Prometheus up?"
