"""What is answered to KEDA, and what KEDA's autoscaler makes of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from contracts import externalscaler_pb2 as pb
from scaler.acting.keda import ExternalScaler
from scaler.acting.keda_server import open_access
from scaler.acting.keda_trigger import BadTrigger, Trigger, metric_spec, metric_value
from scaler.errors import WantedUnknown
from scaler.serving.server import Access
from tests.integration.keda_model import hpa_replicas


def test_a_trigger_needs_a_model_only() -> None:
    """What else stands in the metadata is KEDA's or nobody's."""
    assert Trigger.parse({"model": "chat", "scalerAddress": "tidegate:9003"}) == Trigger("chat", 1)


@pytest.mark.parametrize("share", ["0", "-1", "2.5", "", "many", "1001", "²"])
def test_instances_per_replica_is_a_whole_number(share: str) -> None:
    """The refusal names the key, the value and the range."""
    with pytest.raises(BadTrigger, match=r"instancesPerReplica = .*, must be a whole number from 1 to 1000"):
        Trigger.parse({"model": "chat", "instancesPerReplica": share})


@pytest.mark.parametrize(("instances", "replicas"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_replicas_are_rounded_up(instances: int, replicas: int) -> None:
    """Four instances a pod: nobody gets fewer instances than were decided, and only 0 gives 0."""
    assert Trigger("chat", 4).replicas(instances) == replicas


def test_a_metric_name_is_a_path_segment() -> None:
    """The HPA asks for it in a URL."""
    assert Trigger("team/chat v2:a%").metric_name == "tidegate-team-chat-v2-a-"


def test_whole_numbers_and_floats_say_the_same() -> None:
    """Before v2.17 KEDA reads the one, from then on the other."""
    spec = metric_spec(Trigger("chat")).metricSpecs[0]
    value = metric_value(Trigger("chat"), "tidegate-chat", 7).metricValues[0]
    assert (spec.targetSize, spec.targetSizeFloat) == (1, 1.0)
    assert (value.metricValue, value.metricValueFloat) == (7, 7.0)


def test_kedas_own_prefix_is_no_other_metric() -> None:
    """keda#2640: "s0-tidegate-chat" came from a KEDA that did not take its index off."""
    values = metric_value(Trigger("chat"), "s12-tidegate-chat", 7).metricValues
    assert values[0].metricName == "tidegate-chat"
    with pytest.raises(BadTrigger, match="metric 'tidegate-embed' is not chat's"):
        metric_value(Trigger("chat"), "tidegate-embed", 7)


def test_the_hpas_tolerance_swallows_one_at_ten_replicas() -> None:
    """10 → 11 and 20 → 18 are not done with its 10 %, and are with 0; up to 9 replicas every step is."""
    assert hpa_replicas(10, total=11, target=1) == 10
    assert hpa_replicas(20, total=18, target=1) == 20
    assert hpa_replicas(10, total=11, target=1, tolerance=0) == 11
    assert hpa_replicas(20, total=18, target=1, tolerance=0) == 18
    steps = [(current, wanted) for current in range(1, 10) for wanted in range(1, 40)]
    assert all(hpa_replicas(current, wanted, 1) == wanted for current, wanted in steps)


WIRE = {
    "ScaledObjectRef": {"name": 1, "namespace": 2, "scalerMetadata": 3},
    "IsActiveResponse": {"result": 1},
    "GetMetricSpecResponse": {"metricSpecs": 1},
    "MetricSpec": {"metricName": 1, "targetSize": 2, "targetSizeFloat": 3},
    "GetMetricsRequest": {"scaledObjectRef": 1, "metricName": 2},
    "GetMetricsResponse": {"metricValues": 1},
    "MetricValue": {"metricName": 1, "metricValue": 2, "metricValueFloat": 3},
}
"""Of kedacore/keda at 8b4f083c, pkg/scalers/externalscaler/externalscaler.proto."""


def test_names_and_numbers_are_kedas() -> None:
    """A field that is renumbered here would be read as nothing there."""
    messages = pb.DESCRIPTOR.message_types_by_name
    found = {
        name: {field.name: field.number for field in message.fields} for name, message in messages.items()
    }
    assert found == WIRE
    (service,) = pb.DESCRIPTOR.services_by_name.values()
    assert service.full_name == "externalscaler.ExternalScaler"
    streams = {method.name: method.server_streaming for method in service.methods}
    assert [name for name, is_stream in streams.items() if is_stream] == [
        "StreamIsActive",
        "StreamMetricSpec",
    ]
    assert set(streams) == {"IsActive", "GetMetricSpec", "GetMetrics", "StreamIsActive", "StreamMetricSpec"}


def test_the_port_for_keda_has_the_control_ports_tls_and_asks_for_no_token() -> None:
    """KEDA has none to show; beyond loopback it may listen all the same."""
    control = Access(cert_path="c", key_path="k", client_ca_path="ca", token="0123456789abcdef")  # noqa: S106
    access = open_access("[::]:9003", control)
    assert (access.host, access.port, access.token) == ("::", 9003, "")
    assert (access.cert_path, access.client_ca_path) == ("c", "ca")
    open_access("0.0.0.0:9003", Access()).check()


class Quiet:
    """A source that never gives notice."""

    def __init__(self) -> None:
        self.count: int | None = None

    async def wanted(self, model: str) -> int:
        if self.count is None:
            raise WantedUnknown("not yet")
        return self.count

    async def changes(self) -> AsyncIterator[object]:
        await asyncio.Event().wait()
        yield


async def test_a_stream_finds_a_change_without_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks every LOOK_AGAIN_S, here 0: unknown, then active, then not; a closed one ends."""
    monkeypatch.setattr("scaler.acting.keda.LOOK_AGAIN_S", 0)
    source = Quiet()
    scaler = ExternalScaler(source)
    stream = scaler.StreamIsActive(pb.ScaledObjectRef(scalerMetadata={"model": "chat"}), None)  # type: ignore[arg-type]
    first = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    assert not first.done()
    source.count = 2
    assert (await first).result
    source.count = 0
    assert not (await anext(stream)).result
    scaler.close()
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
