"""What the scaler says of models that can grow no more; and the bounded wait of calls that find one."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from gateway.errors import ServiceSaturated
from gateway.routes import Queue
from gateway.scaler_client import ScalerSilent, WakeRefused

logger = logging.getLogger("gateway")

ASK_S = 1.0
FORGET_S = 10.0
"""A scaler that says nothing for so long is no reason to turn calls away."""
LOOK_S = 0.05


class Scaler(Protocol):
    """What is needed of `ScalerClient`."""

    async def saturated(self) -> set[str]: ...


class Saturation:
    """Which models are saturated, as last told."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._models: set[str] = set()
        self._told_s = clock()

    def tell(self, models: set[str]) -> None:
        self._models, self._told_s = models, self._clock()

    def is_saturated(self, model: str) -> bool:
        return model in self._models and self._clock() - self._told_s <= FORGET_S

    async def follow(self, scaler: Scaler) -> None:
        """Until cancelled."""
        while True:
            try:
                self.tell(await scaler.saturated())
            except (ScalerSilent, WakeRefused) as exc:
                logger.debug("the scaler does not tell who is saturated: %s", exc)
            await asyncio.sleep(ASK_S)


class WaitingRoom:
    """Calls of saturated services that have nothing to degrade to wait here, each service's apart."""

    def __init__(self) -> None:
        self._num_waiting: Counter[str] = Counter()

    async def wait(self, service: str, queue: Queue, is_saturated: Callable[[], bool]) -> None:
        """Returns when the service is not saturated any more. Raises ServiceSaturated past either bound."""
        if not is_saturated():
            return
        if self._num_waiting[service] >= queue.max_waiting:
            raise ServiceSaturated(
                f"service {service!r} is saturated and {queue.max_waiting} calls wait already; try again later"
            )
        self._num_waiting[service] += 1
        try:
            async with asyncio.timeout(queue.max_wait_s):
                while is_saturated():  # noqa: ASYNC110 - what it asks changes with the clock, too
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            raise ServiceSaturated(
                f"service {service!r} is still saturated after {queue.max_wait_s:g} s; try again later"
            ) from None
        finally:
            self._num_waiting[service] -= 1
