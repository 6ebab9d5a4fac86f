"""The official Kubernetes client against an API server of a few dozen lines, over HTTP."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from scaler.acting import kubernetes_api
from scaler.acting.kubernetes_api import KubernetesApi, Resource
from scaler.acting.kubernetes_target import KubernetesTarget
from scaler.acting.workload import Workload
from scaler.deciding.observation import Counts
from scaler.errors import Conflict, KubernetesMissing, KubernetesRefused, KubernetesUnreachable
from tests.integration.fake_kubernetes import CHAT, LEASE, FakeKubernetes, serving

pytestmark = pytest.mark.integration

DEPLOYMENTS = Resource("apps", "v1", "deployments", "default")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "default")


@pytest.fixture
def fake() -> FakeKubernetes:
    return FakeKubernetes()


@pytest.fixture
def kubeconfig(fake: FakeKubernetes, tmp_path: Path) -> Iterator[str]:
    with serving(fake, tmp_path) as path:
        yield path


@pytest.fixture
async def api(kubeconfig: str) -> AsyncIterator[KubernetesApi]:
    made = KubernetesApi(kubeconfig)
    yield made
    await made.close()


async def test_a_deployment_is_scaled_over_the_wire(fake: FakeKubernetes, api: KubernetesApi) -> None:
    """1 → 3 → 0 → 1: only replicas changes, through the scale subresource alone."""
    fake.put(CHAT, fake.deployment(1) | {"spec": {"replicas": 1, "template": {"kept": True}}})
    target = KubernetesTarget(
        api, {"chat": Workload.parse("deployment/chat", "default")}, say=print, poll_s=0.01
    )
    for count in (3, 0, 1):
        fake.obeys = True
        result = await target.scale("chat", count, "test")
        assert result.after == count
        assert await target.counts("chat") == Counts(count)
    assert fake.objects[CHAT]["spec"] == {"replicas": 1, "template": {"kept": True}}
    assert {path for method, path in fake.requests if method == "PUT"} == {f"{CHAT}/scale"}


async def test_a_lease_is_created_replaced_and_guarded_by_its_version(
    fake: FakeKubernetes, api: KubernetesApi
) -> None:
    """The second creator and the writer over an old version get Conflict, with the server's words."""
    body = {"metadata": {"name": "tidegate"}, "spec": {"holderIdentity": "a"}}
    assert await api.get(LEASES, "tidegate") is None
    first = await api.create(LEASES, body)
    with pytest.raises(Conflict, match=r"409 .*leases/tidegate already exists"):
        await api.create(LEASES, body)
    await api.replace(LEASES, "tidegate", {**first, "spec": {"holderIdentity": "b"}})
    with pytest.raises(Conflict, match="409 the object has been modified"):
        await api.replace(LEASES, "tidegate", first)
    assert fake.objects[LEASE]["spec"]["holderIdentity"] == "b"


async def test_a_refusal_carries_the_servers_words(fake: FakeKubernetes, api: KubernetesApi) -> None:
    """403, as without the rights of deploy/kubernetes/scaler-rbac.yaml."""
    fake.forbidden.add(CHAT)
    with pytest.raises(KubernetesRefused, match=f"403 {CHAT} is forbidden"):
        await api.get(DEPLOYMENTS, "chat")


async def test_a_server_that_is_gone_is_unreachable_at_once(fake: FakeKubernetes, api: KubernetesApi) -> None:
    """It drops the connection: one request, none repeated in secret."""
    fake.is_down = True
    with pytest.raises(KubernetesUnreachable, match=r"no answer from Kubernetes at http://127\.0\.0\.1"):
        await api.get(DEPLOYMENTS, "chat")
    assert fake.num_dropped == 1


async def test_a_server_that_hangs_is_given_up_at_the_deadline(
    fake: FakeKubernetes, api: KubernetesApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0.1 s here; it would have answered after 30 s."""
    monkeypatch.setattr(kubernetes_api, "CALL_TIMEOUT_S", 0.1)
    with fake.lock:
        started_s = time.monotonic()
        with pytest.raises(KubernetesUnreachable, match=r"0\.1 s allowed"):
            await api.get(DEPLOYMENTS, "chat")
    assert time.monotonic() - started_s < 25


async def test_a_cancel_that_comes_with_the_answer_is_heeded(
    api: KubernetesApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a scaler that is told to stop in that moment competes for its lease for ever."""
    answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    monkeypatch.setattr(asyncio.get_running_loop(), "run_in_executor", lambda *arguments: answer)
    call = asyncio.create_task(api.get(DEPLOYMENTS, "chat"))
    await asyncio.sleep(0)
    answer.set_exception(OSError("gone"))
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    monkeypatch.undo()


def test_without_the_client_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an extra, imported when it is needed."""
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(KubernetesMissing, match=r"pip install 'tidegate\[kubernetes\]'"):
        KubernetesApi()


def test_without_a_cluster_the_error_says_what_to_name(tmp_path: Path) -> None:
    """Neither a pod's service account nor a kubeconfig."""
    with pytest.raises(KubernetesMissing, match=r"no cluster to talk to: .*; run in a pod"):
        KubernetesApi(str(tmp_path / "none"))
