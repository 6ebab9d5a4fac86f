"""A real Triton that is full: what is wanted beyond it becomes pods, and goes first when it is no longer wanted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from contracts import scaler_pb2 as pb
from scaler.serving.service_client import ScalerClient
from tests.e2e.plain_triton import plain_triton, write_plain_model
from tests.integration.fake_kubernetes import CHAT, FakeKubernetes, serving
from tests.integration.scaler_process import RunningScaler, running_scaler

pytestmark = pytest.mark.e2e

POLICY = "models: {echo: {min_instances: 1, max_instances: 8}}\n"
Answer = TypeVar("Answer")


def ask(scaler: RunningScaler, call: Callable[[ScalerClient], Awaitable[Answer]]) -> Answer:
    async def asking() -> Answer:
        client = ScalerClient(scaler.address)
        try:
            return await call(client)
        finally:
            await client.close()

    return asyncio.run(asking())


def scaled_to(scaler: RunningScaler, count: int) -> None:
    """Returns when the scaler counts so many ready and has nothing more to do for it."""
    request = pb.ScaleToRequest(model="echo", num_instances=count, duration_s=600, who="test", why="test")
    ask(scaler, lambda client: client.scale_to(request))
    deadline_s = time.monotonic() + 60
    while True:
        (echo,) = ask(scaler, lambda client: client.status()).models
        is_at_rest = not echo.HasField("change") and not echo.counts.draining
        if is_at_rest and (echo.counts.ready, echo.counts.starting) == (count, 0):
            return
        assert time.monotonic() < deadline_s, scaler.log
        time.sleep(0.1)


def test_two_instances_here_and_the_rest_are_pods(tmp_path: Path) -> None:
    """1 → 5 with at most 2 here: 3 pods; 5 → 4 takes a pod, 4 → 1 takes all pods and the second instance."""
    write_plain_model(tmp_path / "repository", "echo")
    (tmp_path / "policy.yaml").write_text(POLICY)
    fake = FakeKubernetes()
    fake.obeys = True
    fake.put(CHAT, fake.deployment(0))
    with (
        serving(fake, tmp_path) as kubeconfig,
        plain_triton(tmp_path / "repository", "echo") as triton,
        running_scaler(
            tmp_path,
            policy_path=str(tmp_path / "policy.yaml"),
            triton_grpc=triton.grpc,
            triton_metrics=triton.metrics.removeprefix("http://").removesuffix("/metrics"),
            target="both",
            kubernetes={
                "workloads": {"echo": "deployment/chat"},
                "max_here": {"echo": 2},
                "kubeconfig": kubeconfig,
            },
        ) as scaler,
    ):
        found = {}
        for count in (5, 4, 1):
            scaled_to(scaler, count)
            found[count] = (len(triton.stub_pids("echo")), fake.objects[CHAT]["spec"]["replicas"])
        assert found == {5: (2, 3), 4: (2, 2), 1: (1, 0)}, scaler.log
