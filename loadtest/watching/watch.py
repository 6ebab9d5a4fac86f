"""Watches the stack from before the first request until after the last, in a thread of its own.

Whatever else the run's process does at the time, rows to merge or a picture to draw, samples go on.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from contextlib import aclosing

from loadtest.curve import Curve
from loadtest.watching.recorder import Recorder
from loadtest.watching.source import Labels, MemorySource, SourceUnreadable

STOP_TIMEOUT_S = 5.0


class Watch:
    """Use as a context, or call `start` and `stop`. A source that fails is counted and asked again."""

    def __init__(self, sources: Sequence[MemorySource]) -> None:
        self._sources = tuple(sources)
        self._recorder = Recorder(source.name for source in sources)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._started.wait()

    def stop(self) -> None:
        """Harmless when repeated. Samples that are under way are given up."""
        if self._loop is None or self._stopping is None:
            return
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(STOP_TIMEOUT_S)

    def __enter__(self) -> Watch:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def curve(self, t0_monotonic_s: float) -> Curve:
        """All that was sampled so far, on the run's time axis. What came before t0 has negative times."""
        return self._recorder.curve(t0_monotonic_s)

    def latest(self, name: str) -> dict[Labels, float]:
        """For a live display."""
        return self._recorder.latest(name)

    def _run(self) -> None:
        asyncio.run(self._follow_all())

    async def _follow_all(self) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        self._started.set()
        tasks = [asyncio.create_task(self._follow(source)) for source in self._sources]
        await self._stopping.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, source: MemorySource) -> None:
        while True:
            try:
                async with aclosing(source.samples()) as samples:
                    async for sample in samples:
                        self._recorder.add(source.name, sample)
            except SourceUnreadable as exc:
                self._recorder.failed(source.name, str(exc))
            except Exception as exc:  # a defect of one source must not end the others
                self._recorder.failed(source.name, f"{type(exc).__name__}: {exc}")
            await asyncio.sleep(source.period_s)
