"""Instances with a start-up time: asked for, serving, draining. A count that is wanted becomes changes here."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from scaler.simulation.queueing import Queue


class Change(NamedTuple):
    """The count of ready and starting instances was changed."""

    at_s: float
    before: int
    after: int
    reason: str


@dataclass
class Fleet:
    """`wish` decides nothing: it does what the policy said, at once."""

    queue: Queue
    startup_s: float
    ready: int = 0
    starting: deque[float] = field(default_factory=deque)
    """When each one will serve, the earliest first."""
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

    def settle(self, now: float) -> int:
        """Those whose start-up time is over serve, so many; those that have drained are gone."""
        if self.draining:
            self.draining = [until_s for until_s in self.draining if until_s > now]
        if not self.starting or self.starting[0] > now:
            return 0
        before = self.ready
        while self.starting and self.starting[0] <= now:
            self.starting.popleft()
            self.ready += 1
        self.queue.resize(self.ready, now)
        return self.ready - before

    def wish(self, num_instances: int, now: float, reason: str) -> None:
        before = self.total
        if num_instances == before:
            return
        self.changes.append(Change(now, before, num_instances, reason))
        if num_instances > before:
            self.starting.extend([now + self.startup_s] * (num_instances - before))
            return
        fewer = before - num_instances
        # The newest that does not serve yet goes first: it costs nothing (ray#43034).
        while fewer and self.starting:
            self.starting.pop()
            fewer -= 1
        if fewer:
            self.ready -= fewer
            self.draining.extend(self.queue.resize(self.ready, now))
