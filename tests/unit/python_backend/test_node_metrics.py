"""What the node tells Prometheus: its status in Prometheus' words."""

from __future__ import annotations

from contracts.node_pb2 import InstanceStatus, ModelStatus, NodeStatus, PoolStatus, TenantStatus
from python_backend.node.metrics import collect

STATUS = NodeStatus(
    pool=PoolStatus(
        total_bytes=1000, leased_bytes=300, free_bytes=600, largest_free_bytes=450, cached_bytes=100
    ),
    models=[
        ModelStatus(
            name="chat",
            prefix_lookup_tokens=80,
            prefix_hit_tokens=20,
            tenants=[TenantStatus(tenant="acme", leased_bytes=200, published_bytes=50)],
        )
    ],
    instances=[InstanceStatus(model="chat", instance="chat-1", state="draining", num_waiting=7, landed=12)],
)


def values(status: NodeStatus) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for metric in collect(status)
        for sample in metric.samples
    }


def test_the_pools_bytes_and_how_torn_they_are():
    """600 free, the largest piece 450: a quarter of what is free can't be had at once."""
    found = values(STATUS)
    assert found["tidegate_node_pool_free_bytes",] == 600
    assert found["tidegate_node_pool_fragmentation_ratio",] == 0.25


def test_a_pool_with_nothing_free_is_not_torn():
    assert values(NodeStatus())["tidegate_node_pool_fragmentation_ratio",] == 0


def test_models_instances_and_tenants_have_their_own_lines():
    found = values(STATUS)
    assert found["tidegate_node_prefix_hit_tokens_total", "chat"] == 20
    assert found["tidegate_node_waiting_sequences", "chat", "chat-1"] == 7
    assert found["tidegate_node_draining", "chat", "chat-1"] == 1
    assert found["tidegate_node_requests_total", "chat", "chat-1"] == 12
    assert found["tidegate_node_tenant_kv_bytes", "chat", "acme"] == 250
