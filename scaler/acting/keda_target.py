"""Models whose pods KEDA runs: a change is something to tell KEDA when it asks, and then to wait for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from scaler.acting.target import ScaleResult
from scaler.deciding.observation import Counts
from scaler.errors import WantedUnknown

POLL_S = 1.0


class Counted(Protocol):
    """Who can see the pods; `KubernetesTarget` does, and reading is all the rights that it needs for it."""

    async def counts(self, model: str) -> Counts | None: ...


class KedaTarget:
    """A Target, and the `keda.ReplicaSource` beside it.

    Until something is decided here, what is wanted is what runs: a scaler that restarts under load asks for no
    other count (knative#4795). `decides` false (this scaler only follows) has the same effect, so that a takeover
    begins with what runs, too.
    """

    def __init__(
        self,
        pods: Counted,
        *,
        decides: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
        poll_s: float = POLL_S,
    ) -> None:
        self._pods = pods
        self._decides = decides
        self._clock = clock
        self._poll_s = poll_s
        self._asked: dict[str, int] = {}
        self._changed = asyncio.Event()

    @property
    def all_wanted(self) -> dict[str, int]:
        """Of every model of which it is known."""
        return dict(self._asked)

    async def wanted(self, model: str) -> int:
        if model not in self._asked and await self.counts(model) is None:
            raise WantedUnknown(
                f"what {model} should have is not decided, and its pods cannot be counted now"
            )
        return self._asked[model]

    async def changes(self) -> AsyncIterator[None]:
        while True:
            changed = self._changed
            yield
            await changed.wait()

    async def counts(self, model: str) -> Counts | None:
        counts = await self._pods.counts(model)
        if counts is not None and (model not in self._asked or not self._decides()):
            self._ask(model, counts.total)
        return counts

    async def scale(self, model: str, wanted: int, reason: str) -> ScaleResult:
        """Returns when the pods are there. A cancel stops the waiting; KEDA is told the same number until the next
        decision."""
        started_s = self._clock()
        counts = await self.counts(model)
        before = counts.total if counts else self._asked.get(model, wanted)
        self._ask(model, wanted)
        while counts is None or counts.ready != wanted or counts.starting or counts.draining:
            await asyncio.sleep(self._poll_s)
            counts = await self.counts(model)
        return ScaleResult(model, before, wanted, self._clock() - started_s, in_place=None, detail="by KEDA")

    def _ask(self, model: str, wanted: int) -> None:
        if self._asked.get(model) != wanted:
            self._asked[model] = wanted
            self._changed.set()
            self._changed = asyncio.Event()
