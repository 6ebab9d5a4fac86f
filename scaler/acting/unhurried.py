"""A target far away answers when it can: the loop does not wait for it, and a slow answer is not lost.

The loop gives a count 0.4 of a tick. An API server that takes longer than that at each look would never be heard,
and nothing would be scaled. So a look goes on by itself, and until it ends the last one counts, for a while.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from scaler.acting.target import ScaleResult, Target
from scaler.deciding.observation import Counts

WAIT_S = 0.2
STALE_S = 10.0
"""A count older than this is no answer. An outage of so long holds everything, as it should."""


@dataclass
class _Looks:
    """Of one model."""

    running: asyncio.Task[None] | None = None
    last: Counts | None = None
    last_at_s: float = float("-inf")


class Unhurried:
    """A Target around one that is slow to count."""

    def __init__(
        self, target: Target, *, clock: Callable[[], float] = time.monotonic, wait_s: float = WAIT_S
    ) -> None:
        self._target = target
        self._clock = clock
        self._wait_s = wait_s
        self._looks: dict[str, _Looks] = {}

    async def counts(self, model: str) -> Counts | None:
        """Raises what the target raised at the look that has ended."""
        looks = self._looks.setdefault(model, _Looks())
        if looks.running is None:
            looks.running = asyncio.create_task(self._look(model, looks))
        running = looks.running
        await asyncio.wait({running}, timeout=self._wait_s)
        if running.done():
            # KEDA and the loop may have waited for the same look: the first one back clears it away.
            if looks.running is running:
                looks.running = None
            running.result()
        return looks.last if self._clock() - looks.last_at_s <= STALE_S else None

    async def scale(self, model: str, wanted: int, reason: str) -> ScaleResult:
        return await self._target.scale(model, wanted, reason)

    async def _look(self, model: str, looks: _Looks) -> None:
        looks.last, looks.last_at_s = await self._target.counts(model), self._clock()
