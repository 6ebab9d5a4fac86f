"""What the node daemon knows of a model whose requests leave Triton at once for an engine of ours. Pure.

Triton is blind to them: with 64 streams running and 36 waiting its statistics of `chat` stood still for 4.5 s, and
say 0.07 s of compute for what took minutes.

An engine's utilisation is the share of its places that is taken: requests in flight against the cap from which
an instance takes no more. Not the share of time in which it stepped: with continuous batching one sequence alone
keeps it stepping all the time, so that share is 100 % at a sixty-fourth of the load.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from contracts import node_pb2

GENERATE = "generate"
Incarnation = tuple[str, int]
"""An instance and when it was attached: its counters begin at 0 with it."""


@dataclass(frozen=True)
class EngineFigures:
    """One model on one node, at one moment."""

    busy_instances: float
    """Sum over the serving instances of in flight / cap."""
    num_serving: int
    num_in_flight: int
    num_running: int
    landed: Mapping[Incarnation, float]
    """Requests that each instance has taken since it was attached."""
    kv_occupancy: float | None
    """0 to 1: of what the model could have now, the share that it uses. None: no KV cache."""
    num_refused: int
    """Leases that the pool refused it, ever."""

    @property
    def num_waiting(self) -> int:
        """In the bridges and in the engines, not running."""
        return max(0, self.num_in_flight - self.num_running)


def figures_of(status: node_pb2.NodeStatus, model: str) -> EngineFigures | None:
    """None: the node does not serve it, or Triton's own statistics tell all about it (embed, batch)."""
    entry = next((entry for entry in status.models if entry.name == model), None)
    if entry is None or entry.kind != GENERATE:
        return None
    instances = [instance for instance in status.instances if instance.model == model]
    serving = [instance for instance in instances if instance.state == "serving"]
    return EngineFigures(
        busy_instances=sum(min(1.0, item.in_flight / item.cap) for item in serving if item.cap),
        num_serving=len(serving),
        num_in_flight=sum(item.in_flight for item in instances),
        num_running=sum(item.num_running for item in instances),
        landed={(item.instance, item.attached_unix_ms): float(item.landed) for item in instances},
        kv_occupancy=_kv_occupancy(entry),
        num_refused=entry.num_refused,
    )


def _kv_occupancy(entry: node_pb2.ModelStatus) -> float | None:
    """Leased blocks and published ones that somebody reads, of these and all that it could still lease."""
    if not entry.block_bytes:
        return None
    used_bytes = entry.kv_leased_bytes + entry.kv_published_bytes - entry.kv_cached_bytes
    could_have_bytes = used_bytes + entry.usable_blocks * entry.block_bytes
    return used_bytes / could_have_bytes if could_have_bytes else 1.0
