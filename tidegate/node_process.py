"""The node daemon as the launcher keeps it: started, probed, and started again when it dies or hangs.

Triton need not restart for it: the stubs fail their requests at once and join the next node by themselves.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from scaler.errors import ScaleError
from scaler.node_client import NodeClient
from tidegate import processes
from tidegate.launch_errors import ProcessFailed
from tidegate.processes import Child
from tidegate.restarts import RestartPlan, Silence

EXIT_CONFIG = 78
"""sysexits.h's EX_CONFIG: the node says that its configuration makes no sense. It would say so again."""
NUM_PROBES = 4
"""As many unanswered ones in a row, over the hang time-out, mean that it hangs."""

Say = Callable[[str], None]


class NodeProcess:
    """`spawn` starts a node, `wait_ready` returns when it serves (raises ProcessFailed), `on_ready` is called when
    a new one does. Call `watch` a few times a second."""

    def __init__(
        self,
        spawn: Callable[[], Child],
        wait_ready: Callable[[Child], Awaitable[None]],
        on_ready: Callable[[], None],
        control_socket: str,
        hang_timeout_s: float,
        say: Say,
    ) -> None:
        self._spawn = spawn
        self._wait_ready = wait_ready
        self._on_ready = on_ready
        self._control_socket = control_socket
        self._probe_s = hang_timeout_s / NUM_PROBES
        self._say = say
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
        elif self._probing is None:
            self._probing = asyncio.create_task(self._probe())
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

    async def _probe(self) -> None:
        """Kill it when it has not answered for the hang time-out; `watch` starts the next one."""
        silence = Silence(NUM_PROBES)
        while True:
            await asyncio.sleep(self._probe_s)
            if silence.probed(await self._answers()):
                self._say(
                    f"{self.child.name} (pid {self.child.pid}) has not answered for"
                    f" {NUM_PROBES * self._probe_s:.0f} s; killing it"
                )
                processes.kill_group(self.child)
                return

    async def _answers(self) -> bool:
        started_s = time.monotonic()
        client = NodeClient(self._control_socket)
        try:
            async with asyncio.timeout(self._probe_s):
                await client.status()
            return True
        except (ScaleError, TimeoutError):
            await asyncio.sleep(max(0.0, started_s + self._probe_s - time.monotonic()))
            return False
        finally:
            await client.close()

    def _cancel_probing(self) -> None:
        if self._probing is not None:
            self._probing.cancel()
            self._probing = None
