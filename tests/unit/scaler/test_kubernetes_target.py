"""Counts of pods and who else sets them, against a Kubernetes of a few dozen lines; no sockets."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from scaler.acting.kubernetes_api import Json, Resource
from scaler.acting.kubernetes_target import KubernetesTarget
from scaler.acting.target import ScaleResult
from scaler.acting.workload import Seen, Workload
from scaler.acting.writers import Writers
from scaler.deciding.observation import Counts
from scaler.errors import Busy, Conflict, KubernetesRefused, KubernetesUnreachable, ModelUnknown, TwoWriters
from tests.integration.fake_kubernetes import CHAT, HPAS, FakeKubernetes

DEPLOYMENT = Workload.parse("deployment/chat", "default")


@dataclass
class DirectApi:
    """The fake, asked without HTTP."""

    fake: FakeKubernetes

    async def get(self, kind: Resource, name: str) -> Json | None:
        return self._ask("GET", f"{path_of(kind)}/{name}")

    async def list(self, kind: Resource) -> list[Json]:
        reply = self._ask("GET", path_of(kind)) or {}
        return list(reply["items"])

    async def scale(self, kind: Resource, name: str) -> Json | None:
        return self._ask("GET", f"{path_of(kind)}/{name}/scale")

    async def replace_scale(self, kind: Resource, name: str, body: Json) -> Json:
        return self._ask("PUT", f"{path_of(kind)}/{name}/scale", body) or {}

    def _ask(self, method: str, path: str, body: Json | None = None) -> Json | None:
        if self.fake.is_down:
            raise KubernetesUnreachable("no answer")
        code, reply = self.fake.answer(method, path, body)
        if code == 404:
            return None
        if code >= 400:
            raise (Conflict if code == 409 else KubernetesRefused)(reply["message"])
        return reply


def path_of(kind: Resource) -> str:
    return f"/apis/{kind.group}/{kind.version}/namespaces/{kind.namespace}/{kind.plural}"


@dataclass
class Rig:
    fake: FakeKubernetes = field(default_factory=FakeKubernetes)
    said: list[str] = field(default_factory=list)
    now_s: float = 0.0

    def __post_init__(self) -> None:
        self.target = KubernetesTarget(
            DirectApi(self.fake),
            {"chat": DEPLOYMENT},
            say=self.said.append,
            clock=lambda: self.now_s,
            poll_s=0,
        )

    def has(self, replicas: int, **pods: int) -> None:
        self.fake.put(CHAT, self.fake.deployment(replicas, **pods))

    @property
    def written(self) -> int:
        return int(self.fake.objects[CHAT]["spec"]["replicas"])

    async def scale(self, wanted: int) -> ScaleResult:
        return await asyncio.wait_for(self.target.scale("chat", wanted, "test"), 10)

    async def has_written(self, replicas: int) -> None:
        """Lets the target go on until it has."""
        for _ in range(1000):
            if self.written == replicas:
                return
            await asyncio.sleep(0)
        raise AssertionError(f"replicas = {self.written}, not {replicas}")

    async def someone_sets(self, replicas: int) -> None:
        self.has(replicas)
        await self.target.counts("chat")


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.mark.parametrize(
    ("deployment", "counts"),
    [
        ({"replicas": 3}, Counts(3)),
        ({"replicas": 5, "running": 3, "ready": 2}, Counts(2, starting=3)),
        ({"replicas": 5, "running": 5, "ready": 0}, Counts(0, starting=5)),
        ({"replicas": 2, "running": 4, "ready": 4}, Counts(2, draining=2)),
        ({"replicas": 0, "running": 0, "ready": 0}, Counts(0)),
    ],
    ids=["at rest", "starting", "never ready", "draining", "zero"],
)
async def test_counts_are_what_was_asked_for_split_by_what_is_ready(
    rig: Rig, deployment: dict[str, int], counts: Counts
) -> None:
    """A pod that never becomes ready stays `starting`, for ever if need be."""
    rig.has(**deployment)
    assert await rig.target.counts("chat") == counts


async def test_nobody_answering_is_not_zero(rig: Rig) -> None:
    """None, said once in ten looks, and again after it had come back."""
    rig.has(3)
    for is_down in [True] * 10 + [False, True]:
        rig.fake.is_down = is_down
        assert await rig.target.counts("chat") == (None if is_down else Counts(3))
    assert rig.said == ["chat: no answer"] * 2


def test_a_kind_that_does_not_tell_who_is_ready_cannot_say() -> None:
    """A custom resource with 2 replicas running and no readyReplicas; with 0 running it is 0."""
    scale: Json = {"spec": {"replicas": 2}, "status": {"replicas": 2}}
    whole: Json = {"apiVersion": "example.com/v1", "status": {}, "metadata": {}}
    assert Seen(scale, whole).counts is None
    assert Seen({**scale, "status": {"replicas": 0}}, whole).counts == Counts(0, starting=2)
    assert Seen(scale, {**whole, "status": {"readyReplicas": 1}}).counts == Counts(1, starting=1)


async def test_a_scale_out_returns_when_the_pods_are_ready(rig: Rig) -> None:
    """1 → 3: written at once, back only when the third is ready."""
    rig.has(1)
    change = asyncio.create_task(rig.scale(3))
    await rig.has_written(3)
    rig.fake.put(CHAT, rig.fake.deployment(3, ready=2))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not change.done()
    rig.has(3)
    result = await change
    assert (result.before, result.after, result.in_place) == (1, 3, None)


async def test_a_second_call_meanwhile_is_busy_and_a_cancel_frees_it(rig: Rig) -> None:
    """The count that was written stays."""
    rig.has(1)
    change = asyncio.create_task(rig.scale(3))
    await rig.has_written(3)
    with pytest.raises(Busy, match="a change of 'chat' is under way"):
        await rig.scale(4)
    change.cancel()
    with pytest.raises(asyncio.CancelledError):
        await change
    rig.has(2)
    assert (await rig.scale(2)).after == 2


async def test_a_conflict_is_written_again_over_a_fresh_look(rig: Rig) -> None:
    """A status update came between: the same count, another resourceVersion."""
    rig.has(2)
    rig.fake.before_write = [rig.fake.deployment(2)]
    change = asyncio.create_task(rig.scale(4))
    await rig.has_written(4)
    rig.has(4)
    assert (await change).before == 2
    assert [method for method, _ in rig.fake.requests].count("PUT") == 2


async def test_an_object_that_never_rests_is_given_up(rig: Rig) -> None:
    """5 conflicts in a row."""
    rig.has(2)
    rig.fake.before_write = [rig.fake.deployment(2) for _ in range(5)]
    with pytest.raises(Busy, match="changed under each of 5 writes of replicas = 4"):
        await rig.scale(4)
    assert rig.written == 2


async def test_bug_8_an_autoscaler_on_the_same_object_is_refused(rig: Rig) -> None:
    """kserve#5196, LLMKube#484: nothing is written, and the text names it. One on another object is no matter."""
    rig.has(2)
    for name, target in (("other", "embed"), ("keda-hpa-chat", "chat")):
        ref = {"apiVersion": "apps/v1", "kind": "Deployment", "name": target}
        rig.fake.put(f"{HPAS}/{name}", {"metadata": {"name": name}, "spec": {"scaleTargetRef": ref}})
    with pytest.raises(TwoWriters, match="has the autoscaler 'keda-hpa-chat', which would undo this"):
        await rig.scale(4)
    assert rig.written == 2
    del rig.fake.objects[f"{HPAS}/keda-hpa-chat"]
    rig.has(4)
    assert (await rig.scale(4)).after == 4


async def test_without_the_right_to_list_autoscalers_scaling_goes_on(rig: Rig) -> None:
    """Said once."""
    rig.fake.forbidden.add(HPAS)
    for count in (2, 3, 2):
        rig.has(count)
        change = asyncio.create_task(rig.scale(count + 1))
        await rig.has_written(count + 1)
        rig.has(count + 1)
        await change
    assert [text for text in rig.said if "autoscalers" in text] == [
        f"cannot look for other autoscalers in default: {HPAS} is forbidden"
    ]


async def test_bug_8_one_change_by_a_person_is_followed_and_the_third_is_a_second_writer(rig: Rig) -> None:
    """LLMKube#484 wrote back 41 times in 14 minutes. Here: two are followed, three within 600 s end it."""
    await rig.someone_sets(2)
    for replicas in (5, 2):
        await rig.someone_sets(replicas)
    assert (await rig.scale(2)).after == 2
    await rig.someone_sets(5)
    with pytest.raises(
        TwoWriters, match=r"3 changes by others in 600 s, the last by somebody; .* pause 'chat'"
    ):
        await rig.scale(2)
    assert rig.written == 5
    rig.now_s += 601
    rig.has(5)
    assert (await rig.scale(5)).after == 5


async def test_the_other_writer_is_named_from_the_servers_notes(rig: Rig) -> None:
    """managedFields says who set `replicas` last. Before our own first write it is no news."""
    await rig.someone_sets(1)
    await rig.someone_sets(3)
    rig.fake.obeys = True
    await rig.scale(2)
    assert rig.said == []
    body = rig.fake.deployment(5)
    body["metadata"]["managedFields"] = [
        note("tidegate", "2026-12-01T07:00:02Z"),
        note("kubectl", "2026-12-01T07:00:00Z"),
        note("gitops", "2026-12-01T07:00:01Z"),
        {"manager": "kube-controller-manager", "time": "2026-12-01T07:00:03Z", "fieldsV1": {"f:status": {}}},
    ]
    rig.fake.put(CHAT, body)
    await rig.target.counts("chat")
    assert rig.said == ["chat: gitops set replicas = 5 of deployments.apps/chat in default"]


def note(manager: str, time: str) -> dict[str, Any]:
    return {"manager": manager, "time": time, "fieldsV1": {"f:spec": {"f:replicas": {}}}}


async def test_a_count_that_somebody_sets_while_ours_is_awaited_stays(rig: Rig) -> None:
    """We wait for 4, somebody sets 3."""
    rig.has(2)
    change = asyncio.create_task(rig.scale(4))
    await rig.has_written(4)
    rig.has(3)
    with pytest.raises(TwoWriters, match="somebody set replicas = 3 while 4 were awaited; it stays"):
        await change
    assert rig.written == 3


def test_a_write_whose_answer_was_lost_is_ours_when_it_shows() -> None:
    """Written 4, no answer; the next look finds 4, or the old 2: neither is somebody else's."""
    writers = Writers()
    assert not writers.saw(2, 0)
    writers.writing(4)
    assert not writers.saw(2, 1)
    assert not writers.saw(4, 2)
    assert writers.saw(2, 3)
    assert writers.num_foreign(3) == 1


async def test_an_object_that_is_not_there_is_named(rig: Rig) -> None:
    """It cannot be counted, said once; a model without a workload is another matter."""
    assert await rig.target.counts("chat") is None
    assert await rig.target.counts("chat") is None
    assert rig.said == ["chat: deployments.apps/chat in default: there is no such object"]
    with pytest.raises(ModelUnknown, match="no workload is named for 'embed'; there are chat"):
        await rig.target.counts("embed")


@pytest.mark.parametrize(
    ("text", "group", "plural"),
    [
        ("deployment/chat", "apps", "deployments"),
        ("StatefulSet/chat", "apps", "statefulsets"),
        ("rollouts.v1alpha1.argoproj.io/chat", "argoproj.io", "rollouts"),
    ],
)
def test_a_workload_is_named_as_kubectl_names_it(text: str, group: str, plural: str) -> None:
    """Any kind with a scale subresource."""
    found = Workload.parse(text, "default")
    assert (found.kind.group, found.kind.plural, found.name) == (group, plural, "chat")


@pytest.mark.parametrize(
    "text", ["chat", "deployment/", "pod/chat", "deployment/a/b", "rollouts.v1/chat", ""]
)
def test_what_names_no_workload_is_refused(text: str) -> None:
    """With the three forms that do."""
    with pytest.raises(
        ValueError, match="names no workload; write deployment/NAME, statefulset/NAME or PLURAL"
    ):
        Workload.parse(text, "default")
