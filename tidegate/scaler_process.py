"""The scaler as the launcher keeps it: started last, started again when it dies, stopped first.

Serving comes before scaling: whatever becomes of the scaler, the stack goes on with the instances there are.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tidegate import processes
from tidegate.launch_errors import ProcessFailed
from tidegate.processes import Child
from tidegate.restarts import RestartPlan, Silence

EXIT_CONFIG = 78
"""sysexits.h's EX_CONFIG: what it is told makes no sense, and it would say so again."""

NUM_PROBES = 4
"""As many unanswered ones in a row, over the hang time-out, mean that it hangs."""

Say = Callable[[str], None]


class ScalerProcess:
    """`spawn` starts one, `wait_ready` returns when it serves (raises ProcessFailed), `on_ready` is called then.
    `answers`: is it well? One that is not for `hang_timeout_s` is killed, and started again.

    Call `watch` a few times a second; nothing here raises for a scaler that fails.
    """

    def __init__(
        self,
        spawn: Callable[[], Child],
        wait_ready: Callable[[Child], Awaitable[None]],
        on_ready: Callable[[], None],
        say: Say,
        answers: Callable[[], Awaitable[bool]],
        hang_timeout_s: float,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._spawn = spawn
        self._wait_ready = wait_ready
        self._on_ready = on_ready
        self._say = say
        self._answers = answers
        self._probe_s = hang_timeout_s / NUM_PROBES
        self._sleep = sleep
        self._plan = RestartPlan()
        self._restarting: asyncio.Task[None] | None = None
        self._probing: asyncio.Task[None] | None = None
        self.is_given_up = False
        self.child = self._start()

    def _start(self) -> Child:
        self._started_s = time.monotonic()
        return self._spawn()

    async def first_ready(self) -> None:
        """Returns when it serves, or has failed to: then `watch` goes on trying."""
        try:
            await self._wait_ready(self.child)
        except ProcessFailed:
            processes.kill_group(self.child)  # too slow; dead already otherwise

    def watch(self) -> None:
        if self._restarting is not None and self._restarting.done():
            self._restarting = None
        if self._restarting is not None or self.is_given_up:
            return
        if self.child.exit_code is not None:
            self._cancel_probing()
            self._restarting = asyncio.create_task(self._restart())
        elif self._probing is None or self._probing.done():
            self._probing = asyncio.create_task(self._probe())

    async def stop(self, timeout_s: float) -> bool:
        """As `processes.stop`."""
        if self._restarting is not None:
            self._restarting.cancel()
            await asyncio.wait({self._restarting})
        self._cancel_probing()
        return await processes.stop(self.child, timeout_s)

    async def _restart(self) -> None:
        """Once. When the next one fails too, `watch` comes back here."""
        processes.kill_group(self.child)
        how = processes.describe_exit(self.child)
        pause_s = self._plan.died(time.monotonic() - self._started_s)
        if self.child.exit_code == EXIT_CONFIG or pause_s is None:
            self.is_given_up = True
            self._say(f"{how}\nserving on without a scaler: the number of instances stays as it is")
            return
        self._say(
            f"{how}\ninstances stay as they are until it is there again; starting it in {pause_s:.1f} s"
        )
        await self._sleep(pause_s)
        self.child = self._start()
        await self.first_ready()
        if self.child.exit_code is None:
            self._on_ready()

    async def _probe(self) -> None:
        """Kill it when it has not been well for the hang time-out; `watch` starts the next one."""
        silence = Silence(NUM_PROBES)
        while True:
            await self._sleep(self._probe_s)
            if silence.probed(await self._answers()):
                self._say(
                    f"{self.child.name} (pid {self.child.pid}) has decided nothing for"
                    f" {NUM_PROBES * self._probe_s:.0f} s; killing it"
                )
                processes.kill_group(self.child)
                return

    def _cancel_probing(self) -> None:
        if self._probing is not None:
            self._probing.cancel()
            self._probing = None


async def is_well(address: str, timeout_s: float) -> bool:
    """Does the scaler there say that its loop ticks?"""
    async with grpc.aio.insecure_channel(address) as channel:
        try:
            reply = await health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=timeout_s
            )
        except grpc.aio.AioRpcError:
            return False
    return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)
