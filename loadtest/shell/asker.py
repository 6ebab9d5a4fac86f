"""A child that sends what it is asked to: `python -m loadtest.shell.asker`, JSON lines in and out.

Of Locust's own users: each waits for its answer, so a call is due when it is asked.
"""

from __future__ import annotations

import asyncio
import math
import os
import sys
import time

import msgspec

from loadtest.generating import kserve_grpc, openai_http  # noqa: F401 - loaded before a test begins, not in it
from loadtest.generating.calling import Caller
from loadtest.generating.messages import Row
from loadtest.generating.process import senders
from loadtest.generating.reporter import Reporter
from loadtest.shell.lines import Ask, Done, Open, Ready, ToAsker, Told, line_of, told

_LINE_BYTES = 1 << 26
"""A call with long prompts is one line."""


class _Teller(Reporter):
    """Every row at once, with the number of its question: Locust shows it now."""

    def __init__(self, pipe: asyncio.WriteTransport) -> None:
        super().__init__(pipe.write)
        self._pipe = pipe

    def sent(self, one: object) -> None:
        pass

    def ended(self, row: Row) -> None:
        self._pipe.write(line_of(told(row)))


async def _run(pipe: int) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_LINE_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    up, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, os.fdopen(pipe, "wb"))
    up.write(line_of(Ready()))
    if not (line := await reader.readline()):
        return  # Locust has stopped before a test began
    opened = msgspec.json.decode(line, type=Open)
    asked: set[asyncio.Task[None]] = set()
    t0_s = time.monotonic()
    async with senders(opened.target) as made:
        caller = Caller(made, _Teller(up), opened.timeout_s, math.inf)
        while line := await reader.readline():
            ask = msgspec.json.decode(line, type=ToAsker)
            if isinstance(ask, Ask):
                task = asyncio.create_task(_one(caller, ask, t0_s, up))
                asked.add(task)
                task.add_done_callback(asked.discard)
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)


async def _one(caller: Caller, ask: Ask, t0_s: float, up: asyncio.WriteTransport) -> None:
    try:
        prepared = caller.prepare(ask.call)
    except KeyError:
        problem = f"no address for {ask.call.protocol}; give --grpc HOST:PORT"
        up.write(line_of(Told(ask.call.user, 0, 0.0, None, None, problem)))
    else:
        await caller.run(prepared, time.monotonic() - t0_s, t0_s)
    up.write(line_of(Done(ask.id)))


def main() -> None:
    pipe = os.dup(1)
    os.dup2(2, 1)  # what a library prints must not get between the lines
    asyncio.run(_run(pipe))
    sys.stderr.flush()
    os._exit(0)  # gRPC's threads may hold calls that were given up


if __name__ == "__main__":
    main()
