"""The leader's record as a Lease (coordination.k8s.io/v1), laid out as Kubernetes' own components do."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import Protocol

from scaler.acting.kubernetes_api import Json, Resource
from scaler.leading.leader import Record, Timing
from scaler.leading.lease import Versioned

WANTED = "tidegate.dev/wanted"
"""The annotation with what the leader decided: {"chat": 4}."""


class Api(Protocol):
    """What the store needs of Kubernetes; `KubernetesApi` is one."""

    async def get(self, kind: Resource, name: str) -> Json | None: ...
    async def create(self, kind: Resource, body: Json) -> Json: ...
    async def replace(self, kind: Resource, name: str, body: Json) -> Json: ...


class KubernetesLease:
    """A `lease.Store`."""

    NAME = "tidegate-scaler"

    def __init__(self, api: Api, namespace: str, name: str = NAME) -> None:
        self._api = api
        self._kind = Resource("coordination.k8s.io", "v1", "leases", namespace)
        self._name = name

    async def read(self) -> Versioned | None:
        found = await self._api.get(self._kind, self._name)
        return Versioned(to_record(found), found) if found else None

    async def write(self, record: Record, over: Versioned | None) -> Versioned:
        before = over.version if over else None
        body = to_lease(record, before if isinstance(before, dict) else {}, self._name)
        if over is None:
            reply = await self._api.create(self._kind, body)
        else:
            reply = await self._api.replace(self._kind, self._name, body)
        return Versioned(to_record(reply), reply)


def to_record(lease: Json) -> Record:
    spec, metadata = lease.get("spec", {}), lease["metadata"]
    return Record(
        holder=spec.get("holderIdentity") or "",
        lease_s=float(spec.get("leaseDurationSeconds") or Timing.lease_s),
        stamp=spec.get("renewTime") or "",
        num_transitions=int(spec.get("leaseTransitions") or 0),
        wanted=_wanted(metadata.get("annotations") or {}),
    )


def to_lease(record: Record, before: Json, name: str) -> Json:
    """Over `before`, whose other fields and labels stay."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    old_spec = before.get("spec", {})
    spec = {
        **old_spec,
        "holderIdentity": record.holder,
        "leaseDurationSeconds": max(1, math.ceil(record.lease_s)),
        "renewTime": now,
        "leaseTransitions": record.num_transitions,
    }
    if old_spec.get("holderIdentity") != record.holder:
        spec["acquireTime"] = now
    if not record.holder:
        del spec["holderIdentity"]  # an empty one is no valid name
    metadata = {"name": name, **before.get("metadata", {})}
    metadata["annotations"] = {
        **(metadata.get("annotations") or {}),
        WANTED: json.dumps(record.wanted, sort_keys=True),
    }
    return {
        **before,
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": metadata,
        "spec": spec,
    }


def _wanted(annotations: Json) -> dict[str, int]:
    """Empty when somebody has written something else there."""
    try:
        found = json.loads(annotations.get(WANTED, "{}"))
        return {str(model): int(count) for model, count in found.items()}
    except (ValueError, TypeError, AttributeError):
        return {}
