"""A child's side of the pipe: rows gather and go up several times a second; a beat measures the loop's lateness."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import numpy as np

from loadtest.generating.messages import Finished, News, Row, Sent, frame

NEWS_EVERY_S = 0.25
BEAT_S = 0.02
MIN_BEATS = 200
"""Below them no 99th percentile is said."""


class Reporter:
    """`write` must not block: the event loop is what everything is timed with."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._sent: list[Sent] = []
        self._rows: list[Row] = []
        self._lags_s: list[float] = []
        self.num_in_flight = 0

    def sent(self, one: Sent) -> None:
        self._sent.append(one)
        self.num_in_flight += 1

    def ended(self, row: Row) -> None:
        self._rows.append(row)
        self.num_in_flight -= 1

    async def tell(self, t0_s: float) -> None:
        """Until cancelled."""
        due_s = time.monotonic()
        while True:
            due_s += NEWS_EVERY_S
            await asyncio.sleep(due_s - time.monotonic())
            self.flush(t0_s)

    async def beat(self) -> None:
        """Until cancelled."""
        while True:
            due_s = time.monotonic() + BEAT_S
            await asyncio.sleep(BEAT_S)
            self._lags_s.append(time.monotonic() - due_s)

    def flush(self, t0_s: float) -> None:
        sent, self._sent = self._sent, []
        rows, self._rows = self._rows, []
        self._write(frame(News(time.monotonic() - t0_s, sent, rows, self.num_in_flight)))

    def finish(self, t0_s: float) -> None:
        self.flush(t0_s)
        lags_s = np.array(self._lags_s if len(self._lags_s) >= MIN_BEATS else [np.nan])
        p99_s, max_s = np.percentile(lags_s, (99, 100)).tolist()
        self._write(frame(Finished(time.process_time(), p99_s, max_s)))
