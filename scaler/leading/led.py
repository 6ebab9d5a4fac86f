"""What a scaler that may not lead puts around its parts: only the leader acts, and all give the same answer.

A follower collects and decides as the leader does, with its hands tied: its windows are warm when it takes over.
KEDA calls all scalers behind a name in turn, so two that answered from their own decisions would make the count
swing. A follower therefore answers with the leader's word, read from the lease at the moment of the call, and with
UNAVAILABLE when it cannot be read, upon which KEDA changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Protocol

from scaler.acting.target import ScaleResult, Target
from scaler.deciding.decision import Floor, Spec
from scaler.deciding.observation import Counts
from scaler.deciding.policy import Policy
from scaler.errors import NotLeader, WantedUnknown
from scaler.leading.leader import Leadership

LOOK_S = 0.5
"""How long after leadership was lost a change may go on. Much less than lies between `renew_s` and `lease_s`."""


class Book(Protocol):
    @property
    def policy(self) -> Policy: ...
    def spec(self, model: str, now: float, lead_s: float, forecast: Floor | None) -> Spec: ...


class Asked(Protocol):
    """`KedaTarget`."""

    @property
    def all_wanted(self) -> dict[str, int]: ...
    async def wanted(self, model: str) -> int: ...
    def changes(self) -> AsyncIterator[None]: ...


class LedBook:
    """The book as a follower reads it: every model is held, in words that say who leads."""

    def __init__(self, book: Book, leadership: Leadership) -> None:
        self._book = book
        self._leadership = leadership

    @property
    def policy(self) -> Policy:
        return self._book.policy

    def spec(self, model: str, now: float, lead_s: float, forecast: Floor | None) -> Spec:
        spec = self._book.spec(model, now, lead_s, forecast)
        if self._leadership.is_leader:
            return spec
        return replace(
            spec, is_paused=True, pause_words=f"{self._leadership.leader} leads, this scaler watches"
        )


class LedTarget:
    """A Target that acts only while this process leads, and takes back what it can when that ends."""

    def __init__(self, target: Target, leadership: Leadership) -> None:
        self._target = target
        self._leadership = leadership

    async def counts(self, model: str) -> Counts | None:
        return await self._target.counts(model)

    async def scale(self, model: str, wanted: int, reason: str) -> ScaleResult:
        """Raises NotLeader beside what the target raises."""
        if not self._leadership.is_leader:
            raise NotLeader(f"{self._leadership.leader} leads; this scaler changes nothing")
        change = asyncio.create_task(self._target.scale(model, wanted, reason))
        try:
            while not change.done() and self._leadership.is_leader:
                await asyncio.wait({change}, timeout=LOOK_S)
        finally:
            if not change.done():
                change.cancel()
                await asyncio.wait({change})
        if change.cancelled():
            raise NotLeader(
                f"leadership was lost to {self._leadership.leader} during a change of {model!r} to {wanted}; "
                "what could be taken back was"
            )
        return change.result()


class LedReplicas:
    """A `keda.ReplicaSource`: the leader's own, which it also publishes, or else what it published."""

    def __init__(self, asked: Asked, leadership: Leadership) -> None:
        self._asked = asked
        self._leadership = leadership

    async def wanted(self, model: str) -> int:
        """The leader's answer is published before it is given, so no follower gives an older one much later."""
        if self._leadership.is_leader:
            count = await self._asked.wanted(model)
            await self._leadership.publish(self._asked.all_wanted)
            return count
        published = await self._leadership.published()
        if model not in published:
            raise WantedUnknown(f"{self._leadership.leader} leads and has not said what {model} should have")
        return published[model]

    def changes(self) -> AsyncIterator[None]:
        return self._asked.changes()
