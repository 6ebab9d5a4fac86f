"""Of several scalers over the same models one acts. Which one, told by a record that all of them can read.

The rules are those of Kubernetes' own components. A record is held as long as it keeps changing: a follower times
it from when it first *saw* this version, by its own steady clock, and takes it only after the whole `lease_s`
without a change. A leader counts from before it *sent* its last good renewal, and stops acting after `renew_s`,
which is less. So whatever the clocks of the machines say, the old leader has stopped before a new one can begin; no
time that another machine wrote is ever compared. What is left to trust is that seconds are equally long on both.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol


@dataclass(frozen=True)
class Timing:
    """Defaults as in client-go."""

    lease_s: float = 15.0
    """How long a record that does not change keeps others away. Followers obey the holder's own figure."""
    renew_s: float = 10.0
    """How long a leader acts on one good renewal."""
    retry_s: float = 2.0
    """Between two looks."""

    def __post_init__(self) -> None:
        if not 0 < self.retry_s < self.renew_s < self.lease_s:
            raise ValueError(
                f"retry_s = {self.retry_s:g}, renew_s = {self.renew_s:g}, lease_s = {self.lease_s:g}: must rise in "
                "this order, or two could lead at once"
            )


@dataclass(frozen=True)
class Record:
    """What stands in the place that all can read."""

    holder: str
    """"": given up by its last holder."""
    lease_s: float
    stamp: str = ""
    """Another one with every renewal. Compared for equality, never read as a time."""
    num_transitions: int = 0
    wanted: Mapping[str, int] = field(default_factory=dict)
    """What the holder decided last, by model, for followers that are asked."""


class Step(StrEnum):
    TAKE = "take"
    RENEW = "renew"
    FOLLOW = "follow"


def next_step(record: Record | None, seen_at_s: float, me: str, now: float) -> Step:
    """`seen_at_s`: when this version of the record was first seen here. None: there is no record yet."""
    if record is None or not record.holder:
        return Step.TAKE
    if record.holder == me:
        return Step.RENEW
    return Step.TAKE if now - seen_at_s >= record.lease_s else Step.FOLLOW


def may_act(renewal_sent_s: float | None, timing: Timing, now: float) -> bool:
    """Of a leader that sent its last good renewal then; None: it holds nothing."""
    return renewal_sent_s is not None and now - renewal_sent_s < timing.renew_s


def awake_clock() -> float:
    """Steady seconds that go on while the machine sleeps, as those of the others do."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def new_name() -> str:
    """Of this process and no other, ever: one that comes back under an old name would think it still led."""
    return f"{os.uname().nodename}-{uuid.uuid4().hex[:8]}"


class Leadership(Protocol):
    """Whether this process acts. `run` it; cancelled, it gives up what it holds: stop acting first."""

    @property
    def is_leader(self) -> bool:
        """At this moment, by the clock: false also in a process that was stopped for a minute and just woke."""
        ...

    @property
    def leader(self) -> str:
        """Who leads, for words; "nobody" when nobody does."""
        ...

    async def run(self) -> None: ...

    async def publish(self, wanted: Mapping[str, int]) -> None:
        """What the leader decided, where followers can read it. Nothing while this one follows."""
        ...

    async def published(self) -> Mapping[str, int]:
        """The leader's word, read afresh. Raises WantedUnknown when there is none or nobody can say."""
        ...
