"""What a source of samples is: an endless series of readings, each of one moment."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

Labels = tuple[tuple[str, str], ...]


class SourceUnreadable(Exception):
    """It gives no sample now; the text says why. The next one is tried after a period."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One value of one quantity. What was not measured makes no reading."""

    name: str
    labels: Labels
    unit: str
    value: float


@dataclass(frozen=True, slots=True)
class Sample:
    """What a source said at `t_s` on CLOCK_MONOTONIC."""

    t_s: float
    readings: tuple[Reading, ...]


class MemorySource(Protocol):
    """One of the stack's parts."""

    @property
    def name(self) -> str: ...

    @property
    def period_s(self) -> float: ...

    def samples(self) -> AsyncGenerator[Sample, None]:
        """Until the caller closes it. Raises SourceUnreadable; asked again, it begins anew."""
        ...


async def ticks(
    period_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> AsyncIterator[float]:
    """Now, and then on an absolute schedule; a tick that is past already is left out, not made up for."""
    first_s = clock()
    number = 0
    while True:
        yield clock()
        number = max(number + 1, int((clock() - first_s) / period_s) + 1)
        await sleep(first_s + number * period_s - clock())
