"""Counts a model's instances while a day runs, a few times a second, from the node."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from benchmarks.tide_figures import Sample
from contracts.stack import Stack
from scaler.errors import ScaleError
from scaler.node_client import NodeClient

SAMPLE_S = 0.1


@contextlib.asynccontextmanager
async def counting(stack: Stack, model: str) -> AsyncIterator[list[Sample]]:
    """Samples by `time.monotonic()`, one more at the end. A node that does not answer leaves a gap."""
    node = NodeClient(stack.node_socket)
    samples: list[Sample] = []

    async def look() -> None:
        with contextlib.suppress(ScaleError):
            loads = await node.loads(model)
            serving = sum(not load.is_draining for load in loads)
            samples.append(Sample(time.monotonic(), len(loads), serving))

    async def look_on() -> None:
        while True:
            await look()
            await asyncio.sleep(SAMPLE_S)

    looking = asyncio.create_task(look_on())
    try:
        yield samples
    finally:
        looking.cancel()
        await asyncio.wait({looking})
        await look()
        await node.close()
