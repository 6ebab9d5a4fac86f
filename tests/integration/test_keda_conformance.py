"""KEDA's own calls, by clients generated from the proto of today and of before v2.17, against a server process."""

from __future__ import annotations

import asyncio
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.integration.keda_model import ScaledObject
from tests.integration.proto_client import ProtoClient

pytestmark = pytest.mark.integration

HERE = Path(__file__).parent
PROTOS = {
    "v2.21": HERE.parents[1] / "contracts" / "externalscaler.proto",
    "before v2.17": HERE / "externalscaler_before_v2_17.proto",
}
CHAT = {"scalerAddress": "tidegate:9003", "model": "chat"}
PUSH_LIMIT_MS = 100.0


class Server:
    def __init__(self) -> None:
        argv = [sys.executable, str(HERE / "keda_process.py")]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout
        self.address = f"127.0.0.1:{self.process.stdout.readline().strip()}"

    def want(self, model: str, count: int) -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{model} {count}\n")
        self.process.stdin.flush()

    def stop(self, sign: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(sign)
        self.process.communicate(timeout=20)
        return self.process.returncode


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    if made.process.poll() is None:
        made.stop()


@pytest.fixture(params=PROTOS)
async def client(
    server: Server, request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[ProtoClient]:
    made = ProtoClient(PROTOS[request.param], tmp_path, server.address)
    yield made
    await made.close()


def ref(client: ProtoClient, **metadata: str) -> Any:
    return client.message("ScaledObjectRef")(
        name="chat", namespace="default", scalerMetadata=metadata or CHAT
    )


def metrics_of(client: ProtoClient, metric_name: str, **metadata: str) -> Any:
    return client.message("GetMetricsRequest")(
        scaledObjectRef=ref(client, **metadata), metricName=metric_name
    )


async def known(client: ProtoClient, count: int) -> None:
    """Returns when the server has been told of `count`."""
    while (await value_of(client)) != count:  # noqa: ASYNC110  # another process's state
        await asyncio.sleep(0.01)


async def value_of(client: ProtoClient) -> int | None:
    try:
        reply = await client.call("GetMetrics", metrics_of(client, "tidegate-chat"))
    except grpc.aio.AioRpcError as exc:
        if exc.code() != grpc.StatusCode.UNAVAILABLE:
            raise
        return None
    return int(reply.metricValues[0].metricValue)


async def refusal(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details() or ""


async def test_every_call_of_the_proto_is_answered(server: Server, client: ProtoClient) -> None:
    """Four calls in the old proto, five in today's, each with what KEDA reads of it."""
    server.want("chat", 4)
    await known(client, 4)
    replies = {}
    for name, is_stream in client.methods.items():
        request = metrics_of(client, "tidegate-chat") if name == "GetMetrics" else ref(client)
        reply = client.call(name, request)
        replies[name] = await reply.read() if is_stream else await reply
    spec, value = replies["GetMetricSpec"].metricSpecs[0], replies["GetMetrics"].metricValues[0]
    assert (spec.metricName, spec.targetSize) == ("tidegate-chat", 1)
    assert (value.metricName, value.metricValue) == ("tidegate-chat", 4)
    assert replies["IsActive"].result
    assert replies["StreamIsActive"].result
    if "StreamMetricSpec" in replies:
        assert replies["StreamMetricSpec"] == replies["GetMetricSpec"]
        assert (spec.targetSizeFloat, value.metricValueFloat) == (1.0, 4.0)
    assert len(replies) == (5 if "StreamMetricSpec" in replies else 4)


async def test_the_metric_spec_is_answered_before_anything_else_is_ready(
    server: Server, client: ProtoClient
) -> None:
    """Nothing is decided yet: the spec comes, a metric does not, and a stream waits without a word until it can."""
    spec = await client.call("GetMetricSpec", ref(client))
    assert spec.metricSpecs[0].targetSize == 1
    assert await value_of(client) is None
    stream = client.call("StreamIsActive", ref(client))
    reading = asyncio.ensure_future(stream.read())
    await known_spec(client)
    assert not reading.done()
    server.want("chat", 1)
    assert (await reading).result


async def known_spec(client: ProtoClient) -> None:
    """A call there and back: what was sent before it has arrived."""
    await client.call("GetMetricSpec", ref(client))


async def test_the_spec_of_a_model_that_is_not_there_is_answered_and_its_metric_refused(
    server: Server, client: ProtoClient
) -> None:
    """keda#7729: an error on GetMetricSpec gives the HPA a CPU metric for ever."""
    spec = await client.call("GetMetricSpec", ref(client, model="nosuch"))
    assert spec.metricSpecs[0].metricName == "tidegate-nosuch"
    asked = metrics_of(client, "tidegate-nosuch", model="nosuch")
    code, words = await refusal(client.call("GetMetrics", asked))
    assert code == grpc.StatusCode.NOT_FOUND
    assert "chat, embed" in words


async def test_a_trigger_without_a_model_is_refused_with_what_to_add(client: ProtoClient) -> None:
    """The answer names the keys that came."""
    for name in ("GetMetricSpec", "IsActive"):
        code, words = await refusal(client.call(name, ref(client, scalerAddress="tidegate:9003")))
        assert code == grpc.StatusCode.INVALID_ARGUMENT
        assert words == "the trigger's metadata has ['scalerAddress'] and no model; add `model: NAME`"


async def test_a_push_stream_delivers_every_change_in_order_within_100_ms(
    server: Server, client: ProtoClient
) -> None:
    """To zero and back 10 times, each after the one before has arrived. From the pipe to here, median of 20."""
    server.want("chat", 1)
    stream = client.call("StreamIsActive", ref(client))
    seen, delays_ms = [(await stream.read()).result], []
    for count in [0, 3] * 10:
        sent_s = time.monotonic()
        server.want("chat", count)
        seen.append((await stream.read()).result)
        delays_ms.append((time.monotonic() - sent_s) * 1000)
    assert seen == [True] + [False, True] * 10
    print(f"push: median {statistics.median(delays_ms):.1f} ms, worst {max(delays_ms):.1f} ms of 20")
    assert statistics.median(delays_ms) < PUSH_LIMIT_MS


async def test_a_change_of_the_count_alone_is_no_message(server: Server, client: ProtoClient) -> None:
    """1 → 4 → 0: KEDA acts on every message, so it gets true once, then false."""
    server.want("chat", 1)
    stream = client.call("StreamIsActive", ref(client))
    assert (await stream.read()).result
    server.want("chat", 4)
    await known(client, 4)
    server.want("chat", 0)
    assert not (await stream.read()).result


async def test_200_streams_hear_of_one_change(server: Server, client: ProtoClient) -> None:
    """KEDA opens one a ScaledObject."""
    server.want("chat", 1)
    streams = [client.call("StreamIsActive", ref(client)) for _ in range(200)]
    assert all([(await stream.read()).result for stream in streams])
    server.want("chat", 0)
    assert not any([(await stream.read()).result for stream in streams])


async def test_a_stopping_server_ends_its_streams_with_ok(server: Server, client: ProtoClient) -> None:
    """After a clean end KEDA opens the next stream in 2 s; after an error it backs off up to 60 s."""
    server.want("chat", 1)
    streams = [client.call(name, ref(client)) for name, is_stream in client.methods.items() if is_stream]
    for stream in streams:
        await stream.read()
    stopping = asyncio.create_task(asyncio.to_thread(server.stop))
    for stream in streams:
        assert await stream.read() == grpc.aio.EOF
        assert await stream.code() == grpc.StatusCode.OK
    assert await stopping == 0


async def test_keda_follows_1_4_2_and_zero_and_back(server: Server, client: ProtoClient) -> None:
    """Its poll and its HPA's arithmetic over our answers: one poll each, no threshold of its own."""
    scaled = ScaledObject(client, CHAT, min_replicas=0)
    for count in (1, 4, 2, 0, 1, 3):
        server.want("chat", count)
        await known(client, count)
        while scaled.replicas == 0 and count > 0:
            await scaled.poll()
        assert await scaled.poll() == count


async def test_nine_instances_are_three_pods_of_four(server: Server, client: ProtoClient) -> None:
    """instancesPerReplica rounds up: 9 / 4."""
    server.want("chat", 9)
    await known(client, 9)
    assert await ScaledObject(client, {**CHAT, "instancesPerReplica": "4"}).poll() == 3


async def test_a_killed_scaler_changes_no_count(server: Server, client: ProtoClient) -> None:
    """keda#8056: with 4 replicas up and the scaler gone, 10 polls later there are 4."""
    server.want("chat", 4)
    await known(client, 4)
    scaled = ScaledObject(client, CHAT, min_replicas=0)
    assert await scaled.poll() == 4
    server.stop(signal.SIGKILL)
    assert [await scaled.poll() for _ in range(10)] == [4] * 10
