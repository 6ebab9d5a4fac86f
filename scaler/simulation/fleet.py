"""Instances with a start-up time: asked for, serving, draining. A count that is wanted becomes changes here."""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from scaler.simulation.queueing import Queue


class Change(NamedTuple):
    """The count of ready and starting instances was changed."""

    at_s: float
    before: int
    after: int
    reason: str


class Start(NamedTuple):
    """An instance on its way."""

    ready_at_s: float
    takes_s: float


@dataclass
class Fleet:
    """`wish` decides nothing: it does what the policy said, at once."""

    queue: Queue
    startup_s: Callable[[], float]
    """Of the next instance."""
    ready: int = 0
    starting: list[Start] = field(default_factory=list)
    """Those that serve first come first."""
    draining: list[float] = field(default_factory=list)
    """When each one will be gone."""
    changes: list[Change] = field(default_factory=list)

    @property
    def total(self) -> int:
        return self.ready + len(self.starting)

    @property
    def paid(self) -> int:
        """What starts and what drains costs as much as what serves."""
        return self.ready + len(self.starting) + len(self.draining)

    def begin(self, num_instances: int) -> None:
        """At second 0 they serve already."""
        self.ready = num_instances
        self.queue.resize(num_instances, 0.0)

    def settle(self, now: float) -> list[Start]:
        """Those whose start-up time is over serve, and are told; those that have drained are gone."""
        if self.draining:
            self.draining = [until_s for until_s in self.draining if until_s > now]
        if not self.starting or self.starting[0].ready_at_s > now:
            return []
        done = [start for start in self.starting if start.ready_at_s <= now]
        del self.starting[: len(done)]
        self.ready += len(done)
        self.queue.resize(self.ready, now)
        return done

    def wish(self, num_instances: int, now: float, reason: str) -> None:
        before = self.total
        if num_instances == before:
            return
        self.changes.append(Change(now, before, num_instances, reason))
        for _ in range(num_instances - before):
            takes_s = self.startup_s()
            bisect.insort(self.starting, Start(now + takes_s, takes_s))
        fewer = max(0, before - num_instances)
        # What would serve last goes first: nobody misses it (ray#43034).
        num_kept = max(0, len(self.starting) - fewer)
        fewer -= len(self.starting) - num_kept
        del self.starting[num_kept:]
        if fewer:
            self.ready -= fewer
            self.draining.extend(self.queue.resize(self.ready, now))
