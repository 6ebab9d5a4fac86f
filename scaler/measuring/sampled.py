"""One Triton is measured and stands for all: the figures of a model that also runs where nobody measures.

Load is taken to be spread evenly over all ready instances, as a Service in front of them does. What is a share or a
time (utilisation, KV use, time in queue) then is the same everywhere; what is an amount (queue, concurrency,
arrivals) grows with the number of instances.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Protocol

from tritonclient.grpc.model_config_pb2 import ModelConfig

from scaler.deciding.observation import Counts, Quality, Reading, Signals
from scaler.errors import ScaleError


class Counted(Protocol):
    """Who counts the instances that are measured."""

    async def counts(self, model: str) -> Counts | None: ...


class Signaller(Protocol):
    """`Collector`."""

    async def signals(self, model: str, counts: Counts | None, now: float) -> Signals: ...
    def forget(self, model: str) -> None: ...


class Config(Protocol):
    """`TritonClient`."""

    async def config(self, model: str) -> ModelConfig: ...


class Served:
    """Counts what a Triton serves that is not ours to scale: it takes no lock on it and looks at no more."""

    def __init__(self, triton: Config) -> None:
        self._triton = triton

    async def counts(self, model: str) -> Counts | None:
        """Raises ScaleError."""
        config = await self._triton.config(model)
        return Counts(sum(group.count for group in config.instance_group))


class Sampled:
    """A collector around the one that measures `here`."""

    def __init__(self, collector: Signaller, here: Counted, timeout_s: float) -> None:
        self._collector = collector
        self._here = here
        self._timeout_s = timeout_s

    async def signals(self, model: str, counts: Counts | None, now: float) -> Signals:
        here = await self._count(model)
        return for_all(await self._collector.signals(model, here, now), here, counts)

    def forget(self, model: str) -> None:
        self._collector.forget(model)

    async def _count(self, model: str) -> Counts | None:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._here.counts(model)
        except (ScaleError, TimeoutError):
            return None


def for_all(signals: Signals, here: Counts | None, everywhere: Counts | None) -> Signals:
    """`signals` of the ready instances here, as those of all that are ready. Unchanged while that can't be told."""
    if not here or not everywhere or not here.ready or here.ready == everywhere.ready:
        return signals
    factor = everywhere.ready / here.ready
    return replace(
        signals,
        queue=_times(signals.queue, factor),
        concurrency=_times(signals.concurrency, factor),
        arrivals_per_s=_times(signals.arrivals_per_s, factor),
    )


def _times(reading: Reading, factor: float) -> Reading:
    return replace(reading, value=reading.value * factor) if reading.quality is Quality.GOOD else reading
