"""What Kubernetes says of an object that has a count, and whose name it goes by. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from scaler.acting.kubernetes_api import FIELD_MANAGER, Json, Resource
from scaler.deciding.observation import Counts

KINDS = {"deployment": "deployments.v1.apps", "statefulset": "statefulsets.v1.apps"}


@dataclass(frozen=True)
class Workload:
    """An object with a scale subresource."""

    kind: Resource
    name: str

    @classmethod
    def parse(cls, text: str, namespace: str) -> Workload:
        """ "deployment/chat", "statefulset/chat", or as kubectl has it, "rollouts.v1alpha1.argoproj.io/chat"."""
        kind, slash, name = text.partition("/")
        plural, _, rest = KINDS.get(kind.lower(), kind).partition(".")
        version, _, group = rest.partition(".")
        if not (slash and name and "/" not in name and plural and version and group):
            raise ValueError(
                f"{text!r} names no workload; write deployment/NAME, statefulset/NAME or PLURAL.VERSION.GROUP/NAME"
            )
        return cls(Resource(group, version, plural, namespace), name)

    def __str__(self) -> str:
        return f"{self.kind.plural}.{self.kind.group}/{self.name} in {self.kind.namespace}"


@dataclass(frozen=True)
class Seen:
    """A workload at one moment."""

    scale: Json
    whole: Json

    @property
    def wanted(self) -> int:
        return int(self.scale["spec"].get("replicas", 0))

    @property
    def counts(self) -> Counts | None:
        """None: it does not say how many are ready."""
        running = int(self.scale.get("status", {}).get("replicas", 0))
        status: Json = self.whole.get("status", {})
        leaves_out_zero = self.whole.get("apiVersion") == "apps/v1" or running == 0
        if "readyReplicas" not in status and not leaves_out_zero:
            return None
        ready = min(int(status.get("readyReplicas", 0)), self.wanted)
        return Counts(ready, starting=self.wanted - ready, draining=max(0, running - self.wanted))

    def last_writer(self) -> str:
        """By the API server's own notes, whoever but us set `replicas` last; "somebody" when it has none."""
        entries = [
            (entry.get("time", ""), entry["manager"])
            for entry in self.whole["metadata"].get("managedFields", [])
            if entry.get("manager") != FIELD_MANAGER
            and "f:replicas" in entry.get("fieldsV1", {}).get("f:spec", {})
        ]
        return str(max(entries)[1]) if entries else "somebody"
