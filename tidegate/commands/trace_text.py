"""Traces as text: a waterfall, and a list."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from rich.console import Console
from rich.table import Table
from rich.text import Text

from contracts.tracing.span import Span, SpanStatus
from contracts.tracing.store import TracedRequest
from contracts.tracing.tree import Row, is_lost, notes_of, rows_of, scaling_text
from tidegate.commands.calls_text import seconds_text

MIN_BAR, MAX_BAR = 16, 60
_COLORS = ("blue", "green", "yellow", "magenta", "cyan", "red")
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def print_waterfall(console: Console, spans: Sequence[Span], scalings: Sequence[Span] = ()) -> None:
    """`spans`: of one trace, at least one. `scalings`: what the scaler did meanwhile."""
    rows = rows_of(spans)
    total_s = max(row.ends_s for row in rows)
    services = list(dict.fromkeys(row.span.service for row in rows))
    bar_width = max(MIN_BAR, min(MAX_BAR, console.width - 70))
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("SPAN", no_wrap=True)
    table.add_column("AT", justify="right", no_wrap=True)
    table.add_column("TOOK", justify="right", no_wrap=True)
    table.add_column(f"0 … {seconds_text(total_s)}", no_wrap=True)
    table.add_column("")
    for row in rows:
        color = _COLORS[services.index(row.span.service) % len(_COLORS)]
        failed = row.span.status is SpanStatus.ERROR
        table.add_row(
            _printable("  " * row.depth + row.span.name, "bold red" if failed else ""),
            seconds_text(row.starts_s),
            seconds_text(row.ends_s - row.starts_s),
            Text(bar(row, total_s, bar_width), style=color),
            _printable(notes_of(row.span), "red" if failed else "dim"),
        )
    console.print(table)
    console.print(
        Text.assemble(
            *((f"█ {name}  ", _COLORS[index % len(_COLORS)]) for index, name in enumerate(services)),
            (f"trace {rows[0].span.trace_id}", "dim"),
        )
    )
    for scaling in scalings:
        console.print(_printable(f"scaler, {scaling_text(scaling, rows[0].span.start_unix_ns)}", "bold"))
    if lost := sum(map(is_lost, rows)):
        console.print(f"{lost} spans have lost their parent", style="yellow")


def bar(row: Row, total_s: float, width: int) -> str:
    """At least a sliver, in eighths of a cell."""
    if total_s <= 0:
        return "▏"
    start = round(8 * width * row.starts_s / total_s)
    length = max(1, round(8 * width * row.ends_s / total_s) - start)
    # A bar begins at a whole cell: no sign is filled from the right.
    cells, eighths = divmod(length, 8)
    return (" " * min(width - 1, start // 8) + "█" * cells + _EIGHTHS[eighths].strip())[:width]


def requests_table(found: Sequence[TracedRequest]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("TIME", "CALL", "KEPT"):
        table.add_column(title)
    table.add_column("TOOK", justify="right")
    table.add_column("REQUEST")
    table.add_column("")
    for each in found:
        table.add_row(
            datetime.fromtimestamp(each.started_unix_s).astimezone().strftime("%H:%M:%S"),
            _printable(each.name),
            each.kept_because,
            seconds_text(each.duration_s),
            _printable(each.request_id),
            _printable(each.status_text, "red"),
        )
    return table


def _printable(text: str, style: str = "") -> Text:
    """What clients have sent must not reach the terminal as anything but letters."""
    return Text("".join(sign if sign.isprintable() else "\ufffd" for sign in text), style=style)
