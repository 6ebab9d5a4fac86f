"""Leadership by a record somewhere else: a Kubernetes Lease (kubernetes_lease.py), or anything with versions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from scaler.errors import Conflict, ScaleError, WantedUnknown
from scaler.leading.leader import Record, Step, Timing, awake_clock, may_act, next_step

FRESH_S = 0.2
"""A record read less long ago answers `published` again: many may ask at once."""


@dataclass(frozen=True)
class Versioned:
    """A record as it was read, and what to show when it is written back."""

    record: Record
    version: object


class Store(Protocol):
    """Where the record stands. Raises ScaleError when it does not answer."""

    async def read(self) -> Versioned | None: ...

    async def write(self, record: Record, over: Versioned | None) -> Versioned:
        """Raises Conflict when something else than `over` stands there."""
        ...


class LeaseLeadership:
    """See `leader.Leadership`. `me` must be another in every process that ever runs, restarts included."""

    def __init__(
        self,
        store: Store,
        me: str,
        *,
        say: Callable[[str], None],
        timing: Timing | None = None,
        clock: Callable[[], float] = awake_clock,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.me = me
        self._store = store
        self._timing = timing or Timing()
        self._say = say
        self._clock = clock
        self._sleep = sleep
        self._seen: Versioned | None = None
        self._seen_at_s = clock()
        self._read_at_s = float("-inf")
        self._renewal_sent_s: float | None = None
        self._wanted: dict[str, int] = {}
        self._writing = asyncio.Lock()
        self._said = ""

    @property
    def is_leader(self) -> bool:
        return may_act(self._renewal_sent_s, self._timing, self._clock())

    @property
    def leader(self) -> str:
        if self.is_leader:
            return self.me
        holder = self._seen.record.holder if self._seen else ""
        return holder if holder and holder != self.me else "nobody"

    async def run(self) -> None:
        try:
            while True:
                await self.turn()
                await self._sleep(self._timing.retry_s)
        finally:
            await self._give_up()

    async def turn(self) -> None:
        """One look, and one write when it is ours to make. Never raises for a store in trouble."""
        try:
            async with asyncio.timeout(self._timing.renew_s / 2), self._writing:
                try:
                    await self._step()
                except Conflict:  # somebody was quicker: look who
                    await self._step()
        except (ScaleError, TimeoutError) as exc:
            self._say_once(f"leadership: {exc or 'no answer in time'}")
        self._say_once(self._standing())

    async def _step(self) -> None:
        await self._look()
        step = next_step(self._record, self._seen_at_s, self.me, self._clock())
        if step is Step.FOLLOW:
            self._renewal_sent_s = None
        else:
            await self._hold(step)

    async def publish(self, wanted: Mapping[str, int]) -> None:
        if not self.is_leader or wanted == self._wanted:
            return
        self._wanted = dict(wanted)
        with contextlib.suppress(ScaleError, TimeoutError):  # the next renewal carries it
            async with asyncio.timeout(self._timing.retry_s), self._writing:
                if self.is_leader:
                    await self._hold(Step.RENEW)

    async def published(self) -> Mapping[str, int]:
        try:
            async with asyncio.timeout(self._timing.retry_s), self._writing:
                if self._clock() - self._read_at_s > FRESH_S:
                    await self._look()
        except (ScaleError, TimeoutError) as exc:
            why = exc or "no answer in time"
            raise WantedUnknown(f"{self.me} follows {self.leader} and cannot read its word: {why}") from exc
        if self._record is None:
            raise WantedUnknown("nobody has led yet")
        return self._record.wanted

    @property
    def _record(self) -> Record | None:
        return self._seen.record if self._seen else None

    async def _look(self) -> None:
        found = await self._store.read()
        self._read_at_s = self._clock()
        if (found.record if found else None) != self._record:
            self._seen_at_s = self._read_at_s
        self._seen = found

    async def _hold(self, step: Step) -> None:
        before, sent_s = self._record, self._clock()
        num_transitions = before.num_transitions if before else 0
        if step is Step.TAKE and before:
            num_transitions += 1
            self._wanted = dict(before.wanted)  # the last leader's word stands until this one has its own
        record = Record(self.me, self._timing.lease_s, num_transitions=num_transitions, wanted=self._wanted)
        self._seen = await self._store.write(record, self._seen)
        self._seen_at_s = self._read_at_s = self._clock()
        self._renewal_sent_s = sent_s

    async def _give_up(self) -> None:
        """The record without a holder: the next one need not wait for it to run out."""
        was_leader, self._renewal_sent_s = self.is_leader, None
        if was_leader and self._seen:
            with contextlib.suppress(ScaleError, TimeoutError):
                async with asyncio.timeout(self._timing.retry_s):
                    await self._store.write(replace(self._seen.record, holder=""), self._seen)

    def _standing(self) -> str:
        return (
            f"leadership: {self.me} leads"
            if self.is_leader
            else f"leadership: {self.leader} leads, not {self.me}"
        )

    def _say_once(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self._say(text)
