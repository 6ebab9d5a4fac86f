"""Several answers to one request: other seeds, streams side by side, counts put together."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence

import msgspec

from contracts.sampling import SamplingParams
from gateway.triton_client import GenerateReply


def with_seeds(sampling: SamplingParams, count: int) -> list[SamplingParams]:
    """The first one has the seed that was given; without one the engine draws a new one each time."""
    seed = sampling.seed
    if seed is None:
        return [sampling] * count
    step = -1 if seed > 0 else 1  # stays within the range of seeds
    return [msgspec.structs.replace(sampling, seed=seed + step * index) for index in range(count)]


def num_cached(cached: Sequence[int], num_choices: int) -> int:
    """`cached`: tokens per answer, the answers to a prompt one after the other.

    Usage has each prompt once, however many answers it gets: what counts is the answer that had to compute most.
    """
    return sum(min(cached[at : at + num_choices]) for at in range(0, len(cached), num_choices))


async def merged(
    streams: Sequence[AsyncGenerator[GenerateReply]],
) -> AsyncGenerator[tuple[int, GenerateReply]]:
    """(which stream, reply) as they come. The first failure ends all; closing it closes all."""
    if len(streams) == 1:
        async with contextlib.aclosing(streams[0]) as only:
            async for reply in only:
                yield 0, reply
        return
    come: asyncio.Queue[tuple[int, GenerateReply | Exception | None]] = asyncio.Queue(len(streams))

    async def pump(index: int, stream: AsyncGenerator[GenerateReply]) -> None:
        ending: Exception | None = None
        try:
            async with contextlib.aclosing(stream):
                async for reply in stream:
                    await come.put((index, reply))
        except Exception as exc:  # raised where the replies are read
            ending = exc
        await come.put((index, ending))

    tasks = [asyncio.create_task(pump(index, stream)) for index, stream in enumerate(streams)]
    try:
        num_running = len(streams)
        while num_running:
            index, item = await come.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                num_running -= 1
            else:
                yield index, item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
