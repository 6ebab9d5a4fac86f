"""What the pool's books say, in the words of the control service and of the stats page."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from contracts import node_pb2
from python_backend.node.pool import Pool
from python_backend.node.pool_figures import ModelStats
from python_backend.stats_page import ModelPage, PoolPage

RECENT_S = 60.0


@dataclass
class RecentHighWater:
    """The most bytes held within the last minute. Reading resets nothing: two scrapers see the same."""

    _peaks: deque[tuple[float, int]] = field(default_factory=deque)
    """(when, bytes), falling: a later greater one makes an earlier smaller one irrelevant."""

    def note(self, held_bytes: int, now_s: float) -> None:
        while self._peaks and self._peaks[-1][1] <= held_bytes:
            self._peaks.pop()
        self._peaks.append((now_s, held_bytes))

    def value(self, now_s: float) -> int:
        while len(self._peaks) > 1 and self._peaks[0][0] < now_s - RECENT_S:
            self._peaks.popleft()
        return self._peaks[0][1] if self._peaks else 0


def describe_pool(pool: Pool, recent_high_water_bytes: int) -> node_pb2.PoolStatus:
    stats = pool.stats()
    return node_pb2.PoolStatus(
        total_bytes=stats.total_bytes,
        leased_bytes=stats.leased_bytes,
        free_bytes=stats.free_bytes,
        largest_free_bytes=stats.largest_free_bytes,
        high_water_bytes=stats.high_water_bytes,
        cached_bytes=stats.cached_bytes,
        recent_high_water_bytes=recent_high_water_bytes,
    )


def fill_model(status: node_pb2.ModelStatus, stats: ModelStats | None, block_tokens: int) -> None:
    """Add the pool's part to a model's status; nothing for models without a KV cache."""
    if stats is None:
        return
    status.kv_leased_bytes = stats.leased_bytes
    status.kv_published_bytes = stats.published_bytes
    status.kv_cached_bytes = stats.cached_bytes
    status.usable_blocks = stats.usable_blocks
    status.prefix_lookup_tokens = stats.lookup_blocks * block_tokens
    status.prefix_hit_tokens = stats.hit_blocks * block_tokens
    status.num_refused = stats.num_refused
    for tenant in sorted({*stats.leased_by_tenant, *stats.published_by_tenant}):
        status.tenants.append(
            node_pb2.TenantStatus(
                tenant=tenant,
                leased_bytes=stats.leased_by_tenant.get(tenant, 0),
                published_bytes=stats.published_by_tenant.get(tenant, 0),
            )
        )


def describe_extents(pool: Pool, pid_of_owner: Mapping[int, int]) -> list[node_pb2.Extent]:
    return [
        node_pb2.Extent(
            offset_bytes=extent.offset,
            num_bytes=extent.nbytes,
            model=extent.model,
            state=extent.state,
            tenant=extent.tenant,
            worker_pid=pid_of_owner.get(extent.owner, 0),
        )
        for extent in pool.extents()
    ]


def page_of(pool: Pool, models: list[str], now_unix_s: float) -> PoolPage:
    stats = pool.stats()
    of_models = [(model, stats_of) for model in models if (stats_of := pool.model_stats(model)) is not None]
    return PoolPage(
        unix_s=now_unix_s,
        total_bytes=stats.total_bytes,
        leased_bytes=stats.leased_bytes,
        published_bytes=stats.published_bytes,
        cached_bytes=stats.cached_bytes,
        free_bytes=stats.free_bytes,
        largest_free_bytes=stats.largest_free_bytes,
        high_water_bytes=stats.high_water_bytes,
        num_failed_checks=stats.num_failed_checks,
        models=[
            ModelPage(
                model,
                s.block_bytes,
                s.leased_bytes,
                s.published_bytes,
                s.cached_bytes,
                s.usable_blocks,
                s.num_refused,
            )
            for model, s in of_models
        ],
    )
