"""Echoes through the gateway at a steady rate, for as long as a rollout is tried, and who answered each."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import grpc

from benchmarks.gateway_load import Door, echo_request

SESSION_EVERY = 5
"""Each fifth call belongs to a session."""
NUM_SESSIONS = 200
CALL_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Call:
    """One echo as its client saw it. `began_s` is `time.monotonic()`."""

    began_s: float
    session: str
    """"": on its own."""
    version: str
    """The model that answered; "": it failed."""


class Caller:
    """An open loop: no call waits for the one before."""

    def __init__(self, address: str, rate_per_s: float) -> None:
        self.rate_per_s = rate_per_s
        self.calls: list[Call] = []
        """Those that have ended, in that order."""
        self.era = 0
        """Raise it, and the next calls belong to new sessions."""
        self._door = Door(address)

    @property
    def single_rate_per_s(self) -> float:
        """Of the calls without a session."""
        return self.rate_per_s * (1 - 1 / SESSION_EVERY)

    @contextlib.asynccontextmanager
    async def calling(self) -> AsyncIterator[None]:
        """All that began have ended when the block has."""
        tasks: list[asyncio.Task[None]] = []
        sending = asyncio.create_task(self._send(tasks))
        try:
            yield
        finally:
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sending
            await asyncio.gather(*tasks)
            await self._door.channel.close()

    async def _send(self, tasks: list[asyncio.Task[None]]) -> None:
        began_s, index = time.monotonic(), 0
        while True:
            await asyncio.sleep(max(0.0, began_s + index / self.rate_per_s - time.monotonic()))
            turn, is_single = divmod(index, SESSION_EVERY)
            session = "" if is_single else f"{self.era}-{turn % NUM_SESSIONS}"
            tasks.append(asyncio.create_task(self._ask(session)))
            index += 1

    async def _ask(self, session: str) -> None:
        metadata = (("x-tidegate-session", session),) if session else ()
        began_s = time.monotonic()
        try:
            answer = await self._door.stub.ModelInfer(
                echo_request(), metadata=metadata, timeout=CALL_TIMEOUT_S
            )
            version = str(answer.model_name)
        except grpc.aio.AioRpcError:
            version = ""
        self.calls.append(Call(began_s, session, version))
