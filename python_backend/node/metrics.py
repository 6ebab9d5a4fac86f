"""The node's Prometheus figures: the pool's bytes, what each model holds of them, instances and their engines.

Read off the same status that `tidegate status` prints, so that the two never differ. Counters of an instance are
its own: they end with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from contracts.node_pb2 import InstanceStatus, ModelStatus, NodeStatus, PoolStatus

Values = tuple[tuple[str, str, Callable[..., float]], ...]

_POOL: Values = (
    ("pool_bytes", "Size of the KV pool.", lambda pool: pool.total_bytes),
    ("pool_free_bytes", "In no lease and in no published block.", lambda pool: pool.free_bytes),
    ("pool_leased_bytes", "Held by workers.", lambda pool: pool.leased_bytes),
    ("pool_cached_bytes", "Published prefix blocks that nobody reads.", lambda pool: pool.cached_bytes),
    (
        "pool_largest_free_bytes",
        "The greatest extent that could be leased as one.",
        lambda pool: pool.largest_free_bytes,
    ),
    (
        "pool_fragmentation_ratio",
        "1 - largest free extent / free bytes; 0 with nothing free.",
        lambda pool: 1 - pool.largest_free_bytes / pool.free_bytes if pool.free_bytes else 0.0,
    ),
    (
        "pool_high_water_bytes",
        "The most that was held within the last minute; a scrape takes nothing from another one.",
        lambda pool: pool.recent_high_water_bytes,
    ),
    ("weights_bytes", "Resident weight sets.", lambda pool: pool.weights_bytes),
    ("weights_budget_bytes", "The most that they may take.", lambda pool: pool.weights_budget_bytes),
)
_MODEL: Values = (
    ("kv_leased_bytes", "Held by the model's workers.", lambda model: model.kv_leased_bytes),
    (
        "kv_published_bytes",
        "Prefix blocks of the model, read or not.",
        lambda model: model.kv_published_bytes,
    ),
    ("kv_usable_blocks", "Blocks that it could lease now.", lambda model: model.usable_blocks),
    ("kv_floor_bytes", "What is kept for it.", lambda model: model.kv_floor_bytes),
    ("spare_workers", "Warm workers that stand by.", lambda model: model.num_spares),
    ("instances", "Attached instances.", lambda model: model.num_instances),
)
_MODEL_TOTALS: Values = (
    (
        "prefix_lookup_tokens",
        "Prompt tokens that were looked for in the cache.",
        lambda m: m.prefix_lookup_tokens,
    ),
    ("prefix_hit_tokens", "Prompt tokens that were found there.", lambda m: m.prefix_hit_tokens),
    ("leases_refused", "Leases answered with: exhausted.", lambda model: model.num_refused),
)
_INSTANCE: Values = (
    ("in_flight_requests", "Accepted by the instance, not answered to the end.", lambda one: one.in_flight),
    ("running_sequences", "In the engine's batch.", lambda one: one.num_running),
    ("waiting_sequences", "In the engine, and not in its batch.", lambda one: one.num_waiting),
    ("draining", "1: it takes no more, and goes.", lambda one: float(one.state == "draining")),
)
_INSTANCE_TOTALS: Values = (
    ("requests", "Accepted since the instance attached.", lambda one: one.landed),
    (
        "preemptions",
        "Sequences that gave up their blocks and were recomputed.",
        lambda one: one.num_preempted,
    ),
    ("worker_restarts", "Workers of the instance that died.", lambda one: one.worker_restarts),
)


def collect(status: NodeStatus) -> Iterable[Metric]:
    pool: PoolStatus = status.pool
    for name, text, value in _POOL:
        yield GaugeMetricFamily(f"tidegate_node_{name}", text, value=float(value(pool)))
    models: list[ModelStatus] = list(status.models)
    for family, value in _families(_MODEL, GaugeMetricFamily, "model"):
        yield _filled(family, value, models, lambda model: [model.name])
    for family, value in _families(_MODEL_TOTALS, CounterMetricFamily, "model"):
        yield _filled(family, value, models, lambda model: [model.name])
    instances: list[InstanceStatus] = list(status.instances)
    for family, value in _families(_INSTANCE, GaugeMetricFamily, "model", "instance"):
        yield _filled(family, value, instances, lambda one: [one.model, one.instance])
    for family, value in _families(_INSTANCE_TOTALS, CounterMetricFamily, "model", "instance"):
        yield _filled(family, value, instances, lambda one: [one.model, one.instance])
    yield _tenants(models)


def _families(
    rows: Values, kind: type[GaugeMetricFamily] | type[CounterMetricFamily], *labels: str
) -> Iterable[tuple[Metric, Callable[..., float]]]:
    for name, text, value in rows:
        yield kind(f"tidegate_node_{name}", text, labels=list(labels)), value


def _filled(
    family: Metric,
    value: Callable[..., float],
    items: Iterable[object],
    labels_of: Callable[..., list[str]],
) -> Metric:
    for item in items:
        family.add_metric(labels_of(item), float(value(item)))  # type: ignore[attr-defined]  # both kinds have it
    return family


def _tenants(models: Iterable[ModelStatus]) -> Metric:
    """The pool's books know a tenant only while it holds something: they bound how many there are."""
    held = GaugeMetricFamily(
        "tidegate_node_tenant_kv_bytes",
        "Leased and published bytes of a tenant.",
        labels=["model", "tenant"],
    )
    for model in models:
        for tenant in model.tenants:
            held.add_metric([model.name, tenant.tenant], tenant.leased_bytes + tenant.published_bytes)
    return held
