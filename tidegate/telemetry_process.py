"""The telemetry process as the launcher keeps it: whatever becomes of it, the stack serves on, without traces."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from tidegate import processes
from tidegate.launch_errors import ProcessFailed
from tidegate.processes import Child
from tidegate.restarts import RestartPlan

Say = Callable[[str], None]


class TelemetryProcess:
    """`spawn` starts one, `wait_ready` returns when it listens (raises ProcessFailed). Call `watch` a few times a
    second; nothing here raises."""

    def __init__(
        self,
        spawn: Callable[[], Child],
        wait_ready: Callable[[Child], Awaitable[None]],
        say: Say,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._spawn = spawn
        self._wait_ready = wait_ready
        self._say = say
        self._sleep = sleep
        self._plan = RestartPlan()
        self._restarting: asyncio.Task[None] | None = None
        self.is_given_up = False
        self.child = self._start()

    def _start(self) -> Child:
        self._started_s = time.monotonic()
        return self._spawn()

    async def first_ready(self) -> None:
        """Returns when it listens, or has failed to: then `watch` goes on trying."""
        try:
            await self._wait_ready(self.child)
        except ProcessFailed:
            processes.kill_group(self.child)

    def watch(self) -> None:
        if self._restarting is not None and self._restarting.done():
            self._restarting = None
        if self._restarting is None and not self.is_given_up and self.child.exit_code is not None:
            self._restarting = asyncio.create_task(self._restart())

    async def stop(self, timeout_s: float) -> bool:
        """As `processes.stop`."""
        if self._restarting is not None:
            self._restarting.cancel()
            await asyncio.wait({self._restarting})
        return await processes.stop(self.child, timeout_s)

    async def _restart(self) -> None:
        how = processes.describe_exit(self.child)
        pause_s = self._plan.died(time.monotonic() - self._started_s)
        if pause_s is None:
            self.is_given_up = True
            self._say(f"{how}\nserving on without traces")
            return
        self._say(f"{how}\nspans are lost until it is there again; starting it in {pause_s:.1f} s")
        await self._sleep(pause_s)
        self.child = self._start()
        await self.first_ready()
