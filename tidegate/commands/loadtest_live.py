"""How far a load test is, while it runs: a few lines that change in place on a terminal, else a line now and then.

Nothing here is judged: percentiles are of the newest answers alone, and the report has its own from all rows.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from loadtest.records import Request, Status
from loadtest.watching.source import Labels
from tidegate.console import note

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live
    from rich.progress_bar import ProgressBar

    from loadtest.generating.collecting import Progress
    from loadtest.watching.watch import Watch

NEWEST = 500
"""Answers that the shown percentiles are of."""
LINE_EVERY_S = 10.0
DRAW_EVERY_S = 0.5
BAR_WIDTH = 40


class Figures:
    """What is shown, from rows and counts."""

    def __init__(self) -> None:
        self._ttft_s: deque[float] = deque(maxlen=NEWEST)
        self._delay_s: deque[float] = deque(maxlen=NEWEST)

    def add(self, request: Request) -> None:
        self._delay_s.append(request.t_sent_s - request.t_intended_s)
        if request.status is Status.OK:
            self._ttft_s.append(request.t_first_s - request.t_intended_s)

    def rates(self, progress: Progress) -> str:
        t_s = max(progress.t_s, 1e-9)
        return (
            f"offered {progress.num_due / t_s:.1f}/s, sent {progress.num_sent / t_s:.1f}/s, "
            f"done {progress.num_done}, in flight {progress.num_in_flight}, failed {progress.num_failed}"
        )

    def times(self) -> str:
        p50, p99 = (_percentile_ms(self._ttft_s, percent) for percent in (50, 99))
        late = _percentile_ms(self._delay_s, 99)
        return f"first token or answer after p50 {p50}, p99 {p99}; sent late p99 {late}"


def _percentile_ms(values: deque[float], percent: float) -> str:
    known = np.array(values)
    known = known[~np.isnan(known)]
    return f"{np.percentile(known, percent) * 1000:.1f} ms" if len(known) else "not known yet"


def fullest(used: dict[Labels, float], total: dict[Labels, float]) -> tuple[str, float] | None:
    """The model whose KV blocks are the fullest, and its share in use; None without any."""
    shares = {labels: count / total[labels] for labels, count in used.items() if total.get(labels, 0) > 0}
    if not shares:
        return None
    labels = max(shares, key=lambda each: shares[each])
    return dict(labels).get("model", ""), shares[labels]


class LiveDisplay:
    """A `loadtest.run.Observer` on standard error. Use it as a context."""

    def __init__(self) -> None:
        self._figures = Figures()
        self._watch: Watch | None = None
        self._duration_s = 0.0
        self._live: Live | None = None
        self._drawn_s = 0.0
        self._is_terminal = sys.stderr.isatty()

    def __enter__(self) -> LiveDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_live()

    def stage(self, text: str) -> None:
        self._end_live()
        note(f"{text} ...")

    def began(self, watch: Watch, duration_s: float) -> None:
        self._watch, self._duration_s = watch, duration_s
        note(f"sending for {duration_s:g} s, Ctrl-C ends it and keeps what was measured ...")
        if self._is_terminal:
            from rich.console import Console
            from rich.live import Live

            console = Console(stderr=True, highlight=False)
            self._live = Live(console=console, auto_refresh=False, transient=True)
            self._live.start()

    def request(self, request: Request) -> None:
        self._figures.add(request)

    def progress(self, progress: Progress) -> None:
        now_s = time.monotonic()
        if progress.t_s <= 0:
            return
        if now_s - self._drawn_s < (DRAW_EVERY_S if self._live else LINE_EVERY_S):
            return
        self._drawn_s = now_s
        if self._live is not None:
            self._live.update(self._panel(progress), refresh=True)
            return
        kv = self._kv()
        memory = f"; KV of {kv[0]} {kv[1]:.0%}" if kv else ""
        note(f"{progress.t_s:6.1f} s  {self._figures.rates(progress)}; {self._figures.times()}{memory}")

    def _kv(self) -> tuple[str, float] | None:
        if self._watch is None:
            return None
        return fullest(self._watch.latest("kv.used_blocks"), self._watch.latest("kv.total_blocks"))

    def _panel(self, progress: Progress) -> RenderableType:
        from rich.table import Table

        table = Table.grid(padding=(0, 2))
        done = min(progress.t_s, self._duration_s)
        table.add_row("time", _bar(done, self._duration_s), f"{progress.t_s:.0f} of {self._duration_s:g} s")
        if (kv := self._kv()) is not None:
            table.add_row("KV", _bar(kv[1], 1.0), f"{kv[1]:.0%} of {kv[0]}")
        lines = Table.grid()
        lines.add_row(table)
        lines.add_row(self._figures.rates(progress))
        lines.add_row(self._figures.times())
        return lines

    def _end_live(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def _bar(done: float, total: float) -> ProgressBar:
    from rich.progress_bar import ProgressBar

    return ProgressBar(total=max(total, 1e-9), completed=done, width=BAR_WIDTH)
