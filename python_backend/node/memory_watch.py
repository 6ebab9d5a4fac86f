"""One sample of the pool's memory, for a reader that keeps asking (`WatchMemory` in contracts/node.proto)."""

from __future__ import annotations

from collections.abc import Iterable

from contracts import node_pb2
from python_backend.node.ledger import HighWater
from python_backend.node.pool import Pool

MIN_PERIOD_MS = 10
MAX_PERIOD_MS = 60_000


def sample_of(
    pool: Pool,
    mark: HighWater,
    models: Iterable[str],
    instances: Iterable[node_pb2.InstanceStatus],
    now_monotonic_s: float,
) -> node_pb2.MemorySample:
    """What is held now, and the most since this reader's sample before, which is forgotten with it."""
    stats = pool.stats()
    high_water_bytes, of_model = mark.take()
    return node_pb2.MemorySample(
        monotonic_s=now_monotonic_s,
        total_bytes=stats.total_bytes,
        held_bytes=stats.leased_bytes + stats.published_bytes - stats.cached_bytes,
        high_water_bytes=high_water_bytes,
        cached_bytes=stats.cached_bytes,
        models=[_model(pool, model, of_model) for model in models],
        instances=list(instances),
    )


def _model(pool: Pool, model: str, high_water: dict[str, int]) -> node_pb2.ModelMemory:
    stats = pool.model_stats(model)
    if stats is None:
        return node_pb2.ModelMemory(model=model)
    held_bytes = stats.leased_bytes + stats.published_bytes - stats.cached_bytes
    return node_pb2.ModelMemory(
        model=model,
        block_bytes=stats.block_bytes,
        held_bytes=held_bytes,
        high_water_bytes=max(held_bytes, high_water.get(model, 0)),
        cached_bytes=stats.cached_bytes,
        limit_bytes=pool.limit_bytes(model),
        num_refused=stats.num_refused,
    )
