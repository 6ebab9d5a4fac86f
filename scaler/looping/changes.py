"""Carries out one model's changes of the count: one at a time, each in a task, so that no tick waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from scaler.acting.target import ScaleResult, Target
from scaler.deciding.observation import Counts
from scaler.looping.views import Change

MAX_RETRY_S = 60.0
"""Between two tries of a change that keeps failing: 1, 2, 4 s and so on up to this."""

Outcome: TypeAlias = ScaleResult | Exception | None
"""None: taking an earlier change back was enough."""


class Changes:
    """`current` is the one that runs, and what the next decision has to count as made."""

    def __init__(
        self,
        model: str,
        target: Target,
        counts: Callable[[], Awaitable[Counts | None]],
        clock: Callable[[], float],
    ) -> None:
        self.current: Change | None = None
        self.last_failure = ""
        self._model = model
        self._target = target
        self._counts = counts
        self._clock = clock
        self._newest: asyncio.Task[Outcome] | None = None
        """Carries `current` out."""
        self._tasks: set[asyncio.Task[Outcome]] = set()
        """It, and those that were cancelled and have not ended."""
        self._num_failed = 0
        self._retry_at_s = float("-inf")

    def hindrance(self, now: float) -> str:
        """Why none can begin now; empty: one can."""
        if self.current is not None and self.current.is_given_up:
            return "a change that was given up has not ended"
        if now < self._retry_at_s:
            return f"next try in {self._retry_at_s - now:.0f} s, {self.last_failure}"
        return ""

    def begin(self, change: Change, on_end: Callable[[Outcome], None]) -> None:
        """One that runs is cancelled first, which takes a drain back; this one waits for its end.

        `on_end` is not called for a change that was cancelled.
        """
        before_it = set(self._tasks)
        for task in before_it:
            task.cancel()
        task = asyncio.create_task(self._carry_out(change, before_it), name=f"scale {self._model}")
        self.current, self._newest = change, task
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, change, on_end))

    def give_up(self) -> None:
        """What the current one starts does not come."""
        if self.current is not None and self._newest is not None:
            self.current = replace(self.current, is_given_up=True)
            self._newest.cancel()

    async def stop(self) -> None:
        """Cancels what runs, and waits until it has ended."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _carry_out(self, change: Change, before_it: set[asyncio.Task[Outcome]]) -> Outcome:
        if before_it:
            await asyncio.wait(before_it)
            counts = await self._counts()
            if change.is_out and counts is not None and counts.total >= change.num_wanted:
                return None
        return await self._target.scale(self._model, change.num_wanted, change.reason)

    def _ended(self, change: Change, on_end: Callable[[Outcome], None], task: asyncio.Task[Outcome]) -> None:
        self._tasks.discard(task)
        if task is self._newest:
            self.current = self._newest = None
        if task.cancelled():
            return
        exc = task.exception()
        if isinstance(exc, Exception):
            self._num_failed += 1
            self._retry_at_s = self._clock() + min(MAX_RETRY_S, 2.0 ** (self._num_failed - 1))
            self.last_failure = f"{change.num_before}→{change.num_wanted} failed: {type(exc).__name__}: {exc}"
            return on_end(exc)
        self._num_failed = 0
        on_end(task.result())
