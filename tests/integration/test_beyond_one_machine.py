"""Two scaler processes that KEDA calls in turn, of which one acts by a Lease."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from contracts import scaler_pb2 as pb
from scaler.serving.service_client import ScalerClient
from tests.integration.fake_kubernetes import CHAT, FakeKubernetes, serving
from tests.integration.keda_model import ScaledObject
from tests.integration.proto_client import ProtoClient
from tests.integration.scaler_process import RunningScaler, running_scaler
from tidegate.testing import free_ports

pytestmark = pytest.mark.integration

PROTO = Path(__file__).parents[2] / "contracts" / "externalscaler.proto"
POLICY = "models: {chat: {min_instances: 1, max_instances: 6}}\n"
Answer = TypeVar("Answer")


def ask(scaler: RunningScaler, call: Callable[[ScalerClient], Awaitable[Answer]]) -> Answer:
    async def asking() -> Answer:
        client = ScalerClient(scaler.address)
        try:
            return await call(client)
        finally:
            await client.close()

    return asyncio.run(asking())


def scale_to(scaler: RunningScaler, count: int) -> None:
    request = pb.ScaleToRequest(model="chat", num_instances=count, duration_s=600, who="test", why="test")
    ask(scaler, lambda client: client.scale_to(request))


def reason(scaler: RunningScaler) -> str:
    (chat,) = ask(scaler, lambda client: client.status()).models
    return str(chat.decision.reason)


def until(holds: Callable[[], bool], what: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + 40
    while not holds():
        assert time.monotonic() < deadline_s, what()
        time.sleep(0.05)


class Keda:
    """KEDA's poll over one scaler's port, with the count that it makes true at once."""

    def __init__(self, fake: FakeKubernetes, tmp_path: Path, port: int) -> None:
        self._fake, self._tmp_path, self._port = fake, tmp_path, port

    def poll(self) -> int:
        async def polling() -> int:
            client = ProtoClient(PROTO, self._tmp_path, f"127.0.0.1:{self._port}")
            running = int(self._fake.objects[CHAT]["spec"]["replicas"])
            try:
                return await ScaledObject(client, {"model": "chat"}, replicas=running).poll()
            finally:
                await client.close()

        wanted = asyncio.run(polling())
        self._fake.put(CHAT, self._fake.deployment(wanted))
        return wanted


def test_both_tell_keda_the_same_and_the_next_leader_begins_with_what_runs(tmp_path: Path) -> None:
    """1 → 4 by hand on the leader: both say 4, in turns; it stops, and the other says 4, then what it is told: 2.

    Nothing is written but the Lease.
    """
    fake, ports = FakeKubernetes(), free_ports(2)
    fake.put(CHAT, fake.deployment(1))
    (tmp_path / "policy.yaml").write_text(POLICY)
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    with serving(fake, tmp_path) as kubeconfig:
        settings = {
            "policy_path": str(tmp_path / "policy.yaml"),
            "target": "kubernetes",
            "tick_s": 0.2,
            "kubernetes": {
                "workloads": {"chat": "deployment/chat"},
                "kubeconfig": kubeconfig,
                "by_keda": True,
                "lease": "tidegate-scaler",
            },
        }
        first_keda, second_keda = (Keda(fake, tmp_path, port) for port in ports)
        addresses = [f"127.0.0.1:{port}" for port in ports]
        with (
            running_scaler(tmp_path / "first", keda_address=addresses[0], **settings) as first,
            running_scaler(tmp_path / "second", keda_address=addresses[1], **settings) as second,
        ):
            until(lambda: "leads, this scaler watches" in reason(second), lambda: second.log)
            scale_to(first, 4)
            until(lambda: first_keda.poll() == 4, lambda: first.log)
            until(lambda: second_keda.poll() == 4, lambda: second.log)
            assert [keda.poll() for keda in (second_keda, first_keda) * 3] == [4] * 6
            assert first.stop() == 0
            until(lambda: "this scaler watches" not in reason(second), lambda: second.log)
            assert second_keda.poll() == 4
            scale_to(second, 2)
            until(lambda: second_keda.poll() == 2, lambda: second.log)
    writes = {path for method, path in fake.requests if method == "PUT"}
    assert {path.rpartition("/")[2] for path in writes} == {"tidegate-scaler"}
