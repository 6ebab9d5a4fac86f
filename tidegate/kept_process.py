"""A process that the stack can't serve without, as the launcher keeps it: started again when it dies or hangs.

What it must not do is take the others with it: Triton's stubs join the next node by themselves, and clients of a
gateway that died connect again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from tidegate import processes
from tidegate.launch_errors import ProcessFailed
from tidegate.processes import Child
from tidegate.restarts import RestartPlan, Silence

EXIT_CONFIG = 78
"""sysexits.h's EX_CONFIG: it says that its configuration makes no sense. It would say so again."""
NUM_PROBES = 4
"""As many unanswered ones in a row, over the hang time-out, mean that it hangs."""

Say = Callable[[str], None]
Answers = Callable[[float], Awaitable[bool]]
"""Does it answer within so many seconds? Takes that long to say no."""


class KeptProcess:
    """`spawn` starts one, `wait_ready` returns when it serves (raises ProcessFailed), `on_ready` is called when a
    new one does. `answers` None: nobody asks whether it hangs. Call `watch` a few times a second."""

    def __init__(
        self,
        spawn: Callable[[], Child],
        wait_ready: Callable[[Child], Awaitable[None]],
        on_ready: Callable[[], None],
        say: Say,
        *,
        answers: Answers | None = None,
        hang_timeout_s: float = 0.0,
    ) -> None:
        self._spawn = spawn
        self._wait_ready = wait_ready
        self._on_ready = on_ready
        self._say = say
        self._answers = answers
        self._probe_s = hang_timeout_s / NUM_PROBES
        self._plan = RestartPlan()
        self._restarting: asyncio.Task[None] | None = None
        self._probing: asyncio.Task[None] | None = None
        self.child = self._start()

    def _start(self) -> Child:
        self._started_s = time.monotonic()
        return self._spawn()

    async def first_ready(self) -> None:
        """Raises ProcessFailed: what does not come up at all is not tried again."""
        await self._wait_ready(self.child)

    def watch(self) -> None:
        """Raises ProcessFailed when it has died and will not come back."""
        if self._restarting is not None:
            if self._restarting.done():
                done, self._restarting = self._restarting, None
                done.result()
            return
        if self.child.exit_code is not None:
            self._cancel_probing()
            self._restarting = asyncio.create_task(self._restart())
        elif self._answers is None:
            return
        elif self._probing is None:
            self._probing = asyncio.create_task(self._probe(self._answers))
        elif self._probing.done():
            self._probing.result()

    async def stop(self, timeout_s: float) -> bool:
        """As `processes.stop`."""
        if self._restarting is not None:
            self._restarting.cancel()
            await asyncio.wait({self._restarting})
        self._cancel_probing()
        return await processes.stop(self.child, timeout_s)

    async def _restart(self) -> None:
        """Until it is ready. Raises ProcessFailed."""
        while True:
            processes.kill_group(self.child)
            await asyncio.sleep(self._pause_s())
            self.child = self._start()
            try:
                await self._wait_ready(self.child)
            except ProcessFailed as exc:
                if self.child.exit_code is None:  # too slow
                    self._say(str(exc))
                    processes.kill_group(self.child)
                    await processes.exited(self.child, processes.KILL_TIMEOUT_S)
                continue
            self._on_ready()
            return

    def _pause_s(self) -> float:
        """Before the next start. Raises ProcessFailed when there shall be none."""
        how = processes.describe_exit(self.child)
        if self.child.exit_code == EXIT_CONFIG:
            raise ProcessFailed(how)
        pause_s = self._plan.died(time.monotonic() - self._started_s)
        if pause_s is None:
            raise ProcessFailed(f"given up after {self._plan.num_quick_deaths} quick deaths in a row: {how}")
        self._say(f"{how}\nrequests fail until it is there again; starting it in {pause_s:.1f} s")
        return pause_s

    async def _probe(self, answers: Answers) -> None:
        """Kill it when it has not answered for the hang time-out; `watch` starts the next one."""
        silence = Silence(NUM_PROBES)
        while True:
            await asyncio.sleep(self._probe_s)
            if silence.probed(await answers(self._probe_s)):
                self._say(
                    f"{self.child.name} (pid {self.child.pid}) has not answered for"
                    f" {NUM_PROBES * self._probe_s:.0f} s; killing it"
                )
                processes.kill_group(self.child)
                return

    def _cancel_probing(self) -> None:
        if self._probing is not None:
            self._probing.cancel()
            self._probing = None
