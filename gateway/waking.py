"""Holds requests for a model that has no instance until the scaler has brought it back.

All requests that wait for a model share one wait: one that asks the scaler once a second and Triton ten times. Each
has its own bound, after which it is answered with 503 and Retry-After.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.balanced_triton import BalancedTriton
from gateway.errors import DeadlineExceeded, GatewayError, ModelAsleep, ModelNotFound, ModelNotLoaded
from gateway.scaler_client import ScalerSilent, WakeRefused
from gateway.triton_client import Attempts, GenerateCall, GenerateReply

ASK_SCALER_S = 1.0
"""The scaler forgets who waits after a few seconds."""
ASK_TRITON_S = 0.1
READY_TIMEOUT_S = 2.0


class Scaler(Protocol):
    """What is needed of the scaler; `ScalerClient` is one."""

    async def wake(self, model: str, num_waiting: int) -> None: ...
    async def resting(self, models: Sequence[str]) -> set[str]: ...
    async def close(self) -> None: ...


@dataclass
class _Wait:
    """Of all requests that wait for one model."""

    task: asyncio.Task[None]
    num_waiting: int = 0
    trouble: str = ""
    """Why the scaler could not be asked, the last time."""


class WakingTriton:
    """A BalancedTriton whose calls wait for models that have no instance, `timeout_s` at most. Close it."""

    def __init__(self, triton: BalancedTriton, scaler: Scaler, timeout_s: float) -> None:
        self._triton = triton
        self._scaler = scaler
        self._timeout_s = timeout_s
        self._waits: dict[str, _Wait] = {}

    async def generate(self, call: GenerateCall) -> AsyncGenerator[GenerateReply]:
        """As TritonClient's. Raises ModelAsleep too."""
        started_s, is_answering = time.monotonic(), False
        while True:
            try:
                async with contextlib.aclosing(self._triton.generate(call)) as replies:
                    async for reply in replies:
                        is_answering = True
                        yield reply
                return
            except (ModelNotFound, ModelNotLoaded) as exc:
                if is_answering:
                    raise
                await self._until_ready(call.model, exc, started_s, call.deadline_unix_s)

    async def embed(
        self,
        model: str,
        request_id: str,
        texts: Sequence[str],
        deadline_unix_s: float | None = None,
        attempts: Attempts | None = None,
    ) -> list[bytes]:
        """As TritonClient's. Raises ModelAsleep too."""
        started_s = time.monotonic()
        while True:
            try:
                return await self._triton.embed(model, request_id, texts, deadline_unix_s, attempts)
            except (ModelNotFound, ModelNotLoaded) as exc:
                await self._until_ready(model, exc, started_s, deadline_unix_s)

    async def is_live(self, timeout_s: float) -> bool:
        return await self._triton.is_live(timeout_s)

    async def is_model_ready(self, model: str, timeout_s: float) -> bool:
        """A model that may rest, and does, is ready for requests: the first one wakes it."""
        if await self._triton.is_model_ready(model, timeout_s):
            return True
        try:
            return model in await self._scaler.resting([model])
        except (WakeRefused, ScalerSilent):
            return False

    async def close(self) -> None:
        for wait in self._waits.values():
            wait.task.cancel()
        await self._scaler.close()
        await self._triton.close()

    async def _until_ready(
        self, model: str, why: GatewayError, started_s: float, deadline_unix_s: float | None
    ) -> None:
        """Returns when Triton serves the model. Raises `why` when the scaler will not wake it."""
        left_s = self._timeout_s - (time.monotonic() - started_s)
        deadline_s = deadline_unix_s - time.time() if deadline_unix_s is not None else left_s
        wait = self._join(model)
        try:
            async with asyncio.timeout(min(left_s, deadline_s)):
                await asyncio.shield(wait.task)
        except WakeRefused:
            raise why from None
        except TimeoutError:
            if deadline_s < left_s:
                raise DeadlineExceeded(
                    "the request's time ran out while its model was brought back"
                ) from None
            raise ModelAsleep(
                f"model {model!r} has no instance and none came within {self._timeout_s:g} s"
                f"{f' ({wait.trouble})' if wait.trouble else ''}; try again"
            ) from None
        finally:
            self._leave(model, wait)

    def _join(self, model: str) -> _Wait:
        wait = self._waits.get(model)
        if wait is None or wait.task.done():
            wait = self._waits[model] = _Wait(asyncio.create_task(self._wake(model)))
        wait.num_waiting += 1
        return wait

    def _leave(self, model: str, wait: _Wait) -> None:
        wait.num_waiting -= 1
        if wait.num_waiting:
            return
        wait.task.cancel()
        if self._waits.get(model) is wait:
            del self._waits[model]

    async def _wake(self, model: str) -> None:
        """Ends when Triton serves the model. Raises WakeRefused."""
        asked_s = -ASK_SCALER_S
        while True:
            wait = self._waits[model]
            if time.monotonic() - asked_s >= ASK_SCALER_S:
                asked_s = time.monotonic()
                try:
                    await self._scaler.wake(model, wait.num_waiting)
                    wait.trouble = ""
                except ScalerSilent as exc:
                    wait.trouble = str(exc)
            if await self._triton.is_model_ready(model, READY_TIMEOUT_S):
                return
            await asyncio.sleep(ASK_TRITON_S)
