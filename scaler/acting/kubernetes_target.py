"""Models whose instances are pods: sets `replicas` through the scale subresource, and no other field of anything.

One pod is one instance. A write carries the resourceVersion that was read, so what somebody else wrote meanwhile is
never overwritten unseen. An autoscaler on the same object, or anybody who keeps setting its count, is a second
writer: then this one refuses, with the name. Pods that never become ready stay `starting`; the loop says how long
that is waited for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from scaler.acting.kubernetes_api import Json, Resource
from scaler.acting.target import ScaleResult
from scaler.acting.workload import Seen, Workload
from scaler.acting.writers import WINDOW_S, Writers
from scaler.deciding.observation import Counts
from scaler.errors import (
    Busy,
    Conflict,
    KubernetesRefused,
    KubernetesUnreachable,
    ModelUnknown,
    TwoWriters,
)

POLL_S = 1.0
MAX_TRIES = 5
"""Of one write. A Deployment's status changes its version, too, so a conflict is nothing unusual."""


class Api(Protocol):
    """What the target needs of Kubernetes; `KubernetesApi` is one."""

    async def get(self, kind: Resource, name: str) -> Json | None: ...
    async def list(self, kind: Resource) -> list[Json]: ...
    async def scale(self, kind: Resource, name: str) -> Json | None: ...
    async def replace_scale(self, kind: Resource, name: str, body: Json) -> Json: ...


@dataclass
class _Kept:
    """One model's workload, and what is remembered of it."""

    workload: Workload
    writers: Writers = field(default_factory=Writers)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Looks and writes take turns: an answer that was overtaken would look like a second writer."""
    is_changing: bool = False
    has_written: bool = False
    """Before, others are not beside us, they are who does it: KEDA, where this one only counts."""


class KubernetesTarget:
    """A Target over `workloads`, by model."""

    def __init__(
        self,
        api: Api,
        workloads: Mapping[str, Workload],
        *,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        poll_s: float = POLL_S,
    ) -> None:
        self._api = api
        self._kept = {model: _Kept(workload) for model, workload in workloads.items()}
        self._say = say
        self._clock = clock
        self._poll_s = poll_s
        self._said: dict[str, str] = {}

    async def counts(self, model: str) -> Counts | None:
        """Raises ModelUnknown for a model without a workload; None when the workload cannot be counted."""
        kept = self._of(model)
        try:
            async with kept.turn:
                seen = await self._look(model, kept)
        except (ModelUnknown, KubernetesUnreachable, KubernetesRefused) as exc:
            self._say_once(model, f"{model}: {exc}", type(exc).__name__)
            return None
        if seen.counts is None:
            self._say_once(
                model, f"{model}: {kept.workload} does not say how many are ready (status.readyReplicas)"
            )
        else:
            self._said.pop(model, None)
        return seen.counts

    async def scale(self, model: str, wanted: int, reason: str) -> ScaleResult:
        """A cancel stops the waiting; Kubernetes goes on with what was written."""
        kept = self._of(model)
        if kept.is_changing:
            raise Busy(f"a change of {model!r} is under way; cancel it first")
        kept.is_changing = True
        try:
            started_s = self._clock()
            before = await self._write(model, kept, wanted)
            await self._settled(model, kept, wanted)
            return ScaleResult(model, before, wanted, self._clock() - started_s, in_place=None)
        finally:
            kept.is_changing = False

    async def _write(self, model: str, kept: _Kept, wanted: int) -> int:
        """Returns what was asked for before."""
        async with kept.turn:
            for _ in range(MAX_TRIES):
                seen = await self._look(model, kept)
                if seen.wanted == wanted:
                    return wanted
                await self._refuse_a_second_writer(model, kept, seen)
                body = {**seen.scale, "spec": {**seen.scale["spec"], "replicas": wanted}}
                kept.writers.writing(wanted)
                kept.has_written = True
                try:
                    await self._api.replace_scale(kept.workload.kind, kept.workload.name, body)
                except Conflict:
                    continue
                kept.writers.saw(wanted, self._clock())
                return seen.wanted
        raise Busy(
            f"{kept.workload} changed under each of {MAX_TRIES} writes of replicas = {wanted}; "
            "try again when it has come to rest"
        )

    async def _settled(self, model: str, kept: _Kept, wanted: int) -> None:
        while True:
            try:
                async with kept.turn:
                    seen = await self._look(model, kept)
            except KubernetesUnreachable as exc:
                text = f"{model}: {exc}; replicas = {wanted} is written, waiting on"
                self._say_once(model, text, type(exc).__name__)
            else:
                if seen.wanted != wanted:
                    raise TwoWriters(
                        f"{kept.workload}: {seen.last_writer()} set replicas = {seen.wanted} while {wanted} were "
                        "awaited; it stays"
                    )
                counts = seen.counts
                if counts and counts.ready == wanted and not counts.draining:
                    return
            await asyncio.sleep(self._poll_s)

    async def _look(self, model: str, kept: _Kept) -> Seen:
        kind, name = kept.workload.kind, kept.workload.name
        scale, whole = await asyncio.gather(self._api.scale(kind, name), self._api.get(kind, name))
        if scale is None or whole is None:
            why = "there is no such object" if whole is None else "its kind has no scale subresource"
            raise ModelUnknown(f"{kept.workload}: {why}")
        seen = Seen(scale, whole)
        if kept.writers.saw(seen.wanted, self._clock()) and kept.has_written:
            self._say(f"{model}: {seen.last_writer()} set replicas = {seen.wanted} of {kept.workload}")
        return seen

    async def _refuse_a_second_writer(self, model: str, kept: _Kept, seen: Seen) -> None:
        now = self._clock()
        if kept.writers.are_two(now):
            raise TwoWriters(
                f"{kept.workload}: {kept.writers.num_foreign(now)} changes by others in {WINDOW_S:g} s, the last "
                f"by {seen.last_writer()}; stop the other writer, or pause {model!r} here"
            )
        for autoscaler in await self._autoscalers(kept.workload.kind.namespace):
            target = autoscaler["spec"]["scaleTargetRef"]
            if (target.get("kind"), target.get("name")) == (seen.whole.get("kind"), kept.workload.name):
                raise TwoWriters(
                    f"{kept.workload} has the autoscaler {autoscaler['metadata']['name']!r}, which would undo "
                    "this; delete it, or let KEDA ask us (deploy/README.md) instead of writing here"
                )

    async def _autoscalers(self, namespace: str) -> list[Json]:
        try:
            return await self._api.list(Resource("autoscaling", "v2", "horizontalpodautoscalers", namespace))
        except KubernetesRefused as exc:
            self._say_once(namespace, f"cannot look for other autoscalers in {namespace}: {exc}", "")
            return []

    def _of(self, model: str) -> _Kept:
        if model not in self._kept:
            names = ", ".join(self._kept) or "none"
            raise ModelUnknown(f"no workload is named for {model!r}; there are {names}")
        return self._kept[model]

    def _say_once(self, about: str, text: str, kind: str | None = None) -> None:
        """Not again while `kind` (or the text) stays the same."""
        key = text if kind is None else kind
        if self._said.get(about) != key:
            self._said[about] = key
            self._say(text)
