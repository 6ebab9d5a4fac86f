"""The KEDA server as a process of its own. Lines on stdin say what is wanted: "chat 4"; its port comes first."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator

from scaler.acting.keda_server import KedaServer
from scaler.errors import ModelUnknown, WantedUnknown
from scaler.serving.server import Access

MODELS = ("chat", "embed")


class Typed:
    """A ReplicaSource: knows its models from the start, and what they should have when it was typed."""

    def __init__(self, lines: asyncio.StreamReader) -> None:
        self._counts: dict[str, int] = {}
        self._lines = lines

    async def wanted(self, model: str) -> int:
        if model not in MODELS:
            raise ModelUnknown(f"no model {model!r} is scaled here; there are {', '.join(MODELS)}")
        if model not in self._counts:
            raise WantedUnknown(f"what {model} should have is not known yet")
        return self._counts[model]

    async def changes(self) -> AsyncIterator[str]:
        while line := await self._lines.readline():
            model, count = line.decode().split()
            self._counts[model] = int(count)
            yield model


async def main() -> None:
    stopped, lines = asyncio.Event(), asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    async with KedaServer(Typed(lines), Access(port=0)) as server:
        print(server.port, flush=True)
        await stopped.wait()


asyncio.run(main())
