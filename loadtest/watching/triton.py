"""Requests that wait inside Triton for an instance: the one queue that no engine of ours sees."""

from __future__ import annotations

import math
import re
import time
from collections.abc import AsyncGenerator

import aiohttp

from loadtest.watching.source import Reading, Sample, SourceUnreadable, ticks

PENDING = "nv_inference_pending_request_count"
TIMEOUT_S = 2.0
_SAMPLE = re.compile(
    rf'^{PENDING}\{{[^}}]*\bmodel="(?P<model>[^"]*)"[^}}]*\}}\s+(?P<value>\S+)', re.MULTILINE
)


def pending_readings(text: str) -> tuple[Reading, ...]:
    """Of Triton's Prometheus text, all versions of a model together. A value that is no count is left out."""
    pending: dict[str, float] = {}
    for match in _SAMPLE.finditer(text):
        try:
            value = float(match["value"])
        except ValueError:
            continue
        if math.isfinite(value):
            pending[match["model"]] = pending.get(match["model"], 0.0) + value
    return tuple(
        Reading("triton.pending", (("model", model),), "1", value) for model, value in pending.items()
    )


class TritonSource:
    """`address`: HOST:PORT of the metrics."""

    name = "triton"

    def __init__(self, address: str, period_s: float) -> None:
        self.period_s = period_s
        self._url = f"http://{address}/metrics"

    async def samples(self) -> AsyncGenerator[Sample, None]:
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout, trust_env=False) as session:
            async for _ in ticks(self.period_s):
                yield await self._sample(session)

    async def _sample(self, session: aiohttp.ClientSession) -> Sample:
        try:
            async with session.get(self._url) as reply:
                reply.raise_for_status()
                text = await reply.text()
        except (aiohttp.ClientError, TimeoutError, UnicodeDecodeError) as exc:
            raise SourceUnreadable(f"no metrics from Triton at {self._url}: {exc!r}") from exc
        return Sample(time.monotonic(), pending_readings(text))
