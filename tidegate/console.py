"""What commands print with: results on standard output, progress and errors on standard error.

Rich is imported only when something is drawn; `--help` and `--json` do without it.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID
    from rich.table import Table

_ANY_WIDTH = 10_000

_PLAIN_STEP_S = 2.0
"""Without a terminal a step that takes long says how far it is this often."""


def print_json(value: Any) -> None:
    """One object on one line."""
    print(msgspec.json.encode(value).decode(), flush=True)


def out() -> Console:
    from rich.console import Console

    return Console(highlight=False)


def print_table(console: Console, table: Table) -> None:
    """At its natural width: a narrower terminal wraps lines, but no cell is cut or folded, and a pipe gets all."""
    width = console.width
    console.width = max(width, natural_width(console, table))
    console.print(table)
    console.width = width


def natural_width(console: Console, table: Table) -> int:
    """Columns that it needs when nothing is cut or folded."""
    return console.measure(table, options=console.options.update(max_width=_ANY_WIDTH)).maximum


def note(text: str) -> None:
    """One line for the person at the terminal; scripts read standard output."""
    print(text, file=sys.stderr, flush=True)


def size_text(num_bytes: float) -> str:
    """1536 -> '1.5 KiB'."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} TiB"


def count_text(number: int) -> str:
    """134515008 -> '134.5 M'."""
    for factor, unit in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if number >= factor:
            return f"{number / factor:.1f} {unit}"
    return str(number)


class ConsoleProgress:
    """A bar on a terminal, a few plain lines elsewhere. A `models.progress.Progress`; use as a context."""

    def __init__(self) -> None:
        self._bar: RichProgress | None = None
        self._task: TaskID | None = None
        self._step = ""
        self._total_bytes = 0
        self._done_bytes = 0
        self._told_at_s = 0.0

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            self._bar = _bar()
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._clear()
            self._bar.stop()

    def say(self, text: str) -> None:
        self._clear()
        if self._bar is not None:
            self._bar.console.print(text, markup=False)
        else:
            note(text)

    def start(self, step: str, total_bytes: int) -> None:
        self._clear()
        self._step, self._total_bytes, self._done_bytes = step, total_bytes, 0
        self._told_at_s = time.monotonic()
        if self._bar is not None:
            self._task = self._bar.add_task(step, total=total_bytes)

    def advance(self, num_bytes: int) -> None:
        self._done_bytes += num_bytes
        if self._bar is not None and self._task is not None:
            self._bar.advance(self._task, num_bytes)
        elif self._bar is None and time.monotonic() - self._told_at_s >= _PLAIN_STEP_S:
            self._told_at_s = time.monotonic()
            note(f"{self._step}: {self._done_bytes / max(1, self._total_bytes):.0%}")

    def _clear(self) -> None:
        """Finished steps leave no bar behind: what was achieved is said in a line."""
        if self._bar is not None and self._task is not None:
            self._bar.remove_task(self._task)
            self._task = None


def _bar() -> RichProgress:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TimeRemainingColumn(),
        console=Console(stderr=True, highlight=False),
        transient=True,
    )
