"""When a child's calls begin: at their absolute times, or as slots become free. Never does one wait for another.

Messages are made ahead, in the pauses, so that at its time a call has only to be sent.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Iterator

from loadtest.generating.calling import Caller, Prepared
from loadtest.generating.work import Hold, Work

NUM_AHEAD = 64
PAUSE_S = 0.005
"""Messages are made only in pauses that are longer than this and than the last one's making took."""


class Dispatcher:
    """Of the indices it takes those that are `process` modulo `num_processes`."""

    def __init__(self, work: Work, caller: Caller, process: int, num_processes: int) -> None:
        self._work = work
        self._caller = caller
        self._process, self._num_processes = process, num_processes
        self._ahead: deque[Prepared] = deque()
        self._unmade = self._indices()
        self._making_s = 0.0
        self._running: set[asyncio.Task[None]] = set()

    def _indices(self) -> Iterator[int]:
        if self._work.hold is None:
            return iter(range(self._process, len(self._work.t_intended_s), self._num_processes))
        return itertools.count(self._process, self._num_processes)

    def make_ahead(self) -> None:
        """Before the run begins."""
        while len(self._ahead) < NUM_AHEAD and self._make():
            pass

    async def run(self, t0_s: float) -> None:
        """Returns when every call has begun; of a hold, when its time is over and every slot has ended."""
        if self._work.hold is None:
            await self._run_schedule(t0_s)
        else:
            await self._run_slots(self._work.hold, t0_s)

    async def drain(self, until_s: float) -> None:
        """Waits for what runs, until then; what is still open is cut off, and its row says so."""
        if self._running:
            await asyncio.wait(self._running, timeout=max(0.0, until_s - time.monotonic()))
        await self.cut()

    async def cut(self) -> None:
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)

    async def _run_schedule(self, t0_s: float) -> None:
        times_s = self._work.t_intended_s[self._process :: self._num_processes].tolist()
        for t_intended_s in times_s:
            due_s = t0_s + t_intended_s
            await self._make_until(due_s)
            # Also when it is late already: what was begun before must get on.
            await asyncio.sleep(due_s - time.monotonic())
            self._begin(self._next(), t_intended_s, t0_s)

    async def _run_slots(self, hold: Hold, t0_s: float) -> None:
        starts_s = hold.starts_s[self._process :: self._num_processes]
        slots = [asyncio.create_task(self._slot(t0_s, opens_s)) for opens_s in starts_s]
        self._running.update(slots)
        if slots:
            await asyncio.wait(slots)

    async def _slot(self, t0_s: float, opens_s: float) -> None:
        """A call's intended start is the moment when its slot is free."""
        await asyncio.sleep(t0_s + opens_s - time.monotonic())
        while (now_s := time.monotonic() - t0_s) < self._work.duration_s:
            await self._caller.run(self._next(), now_s, t0_s)

    def _begin(self, prepared: Prepared, t_intended_s: float, t0_s: float) -> None:
        task = asyncio.create_task(self._caller.run(prepared, t_intended_s, t0_s))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def _next(self) -> Prepared:
        if not self._ahead:
            self._make()
        return self._ahead.popleft()

    async def _make_until(self, due_s: float) -> None:
        """One at a time, so that answers are stamped between them."""
        while len(self._ahead) < NUM_AHEAD:
            if due_s - time.monotonic() < max(PAUSE_S, 2 * self._making_s) or not self._make():
                return
            await asyncio.sleep(0)

    def _make(self) -> bool:
        """False: there is no more."""
        started_s = time.monotonic()
        index = next(self._unmade, None)
        if index is None:
            return False
        self._ahead.append(self._caller.prepare(self._work.call(index)))
        self._making_s = time.monotonic() - started_s
        return True
