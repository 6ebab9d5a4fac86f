"""Calls and their sums as tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ledger.call_summary import Percentiles, Summary
from ledger.calls import CallRow
from tidegate.console import natural_width, print_table

_STYLES = {"error": "bold red", "refused": "yellow", "cancelled": "dim"}


def call_values(row: CallRow) -> dict[str, Any]:
    return asdict(row)


def calls_table(rows: Sequence[CallRow]) -> Table:
    """The request's id comes last: it is the one long cell, and a narrow terminal wraps there."""
    table = _table("TIME", "TENANT", "SERVICE", "OUTCOME", right=("TOKENS", "TTFT", "TOOK"))
    table.add_column("REQUEST", overflow="fold")
    for row in rows:
        table.add_row(
            _cell(_clock(row.started_unix_s)[: -len(".000")]),
            _cell(row.tenant or "-"),
            _cell(_service(row)),
            _cell(_outcome(row), _STYLES.get(row.outcome, "")),
            _cell(f"{_number(row.prompt_tokens)} + {_number(row.output_tokens)}"),
            _cell(seconds_text(row.ttft_s)),
            _cell(seconds_text(row.duration_s)),
            _cell(row.request_id if row.attempt == 1 else f"{row.request_id} #{row.attempt}"),
        )
    return table


def call_details(row: CallRow) -> Table:
    """Every field that says something."""
    table = Table(
        title=f"attempt {row.attempt}", title_justify="left", show_header=False, box=None, pad_edge=False
    )
    table.add_column()
    table.add_column(overflow="fold")
    for name, value in asdict(row).items():
        if name.endswith("unix_s"):
            value = _clock(value)
        elif name.endswith("_s"):
            value = None if value is None else seconds_text(value)
        if value not in (None, "", False):
            table.add_row(_cell(name.removesuffix("_unix_s").removesuffix("_s"), "dim"), _cell(str(value)))
    return table


_COUNTS = ("CALLS", "ERRORS", "REFUSED", "TOKENS IN", "CACHED", "OUT")
_TIMES = ("TTFT P50", "P95", "P99", "TOOK P50", "P95", "P99")


def print_summary(console: Console, groups: Sequence[str], found: Sequence[Summary]) -> None:
    """Counts and times side by side where there is room, else one below the other."""
    titles = [name.upper() for name in groups]
    side_by_side = _table(*titles, right=(*_COUNTS, *_TIMES))
    counts, times = _table(*titles, right=_COUNTS), _table(*titles, right=_TIMES)
    for each in found:
        group = [_cell(_group_text(name, value)) for name, value in each.group.items()]
        side_by_side.add_row(*group, *_count_texts(each), *_time_texts(each))
        counts.add_row(*group, *_count_texts(each))
        times.add_row(*group, *_time_texts(each))
    if natural_width(console, side_by_side) <= console.width:
        console.print(side_by_side)
        return
    print_table(console, counts)
    console.print()
    print_table(console, times)


def _count_texts(summary: Summary) -> tuple[str, ...]:
    return (
        f"{summary.num_calls:,}",
        _share(summary.num_errors, summary.num_calls),
        _share(summary.num_refused, summary.num_calls),
        f"{summary.prompt_tokens:,}",
        f"{summary.cached_tokens:,}",
        f"{summary.output_tokens:,}",
    )


def _time_texts(summary: Summary) -> tuple[str, ...]:
    return (*_percentile_texts(summary.ttft), *_percentile_texts(summary.duration))


def seconds_text(seconds: float | None) -> str:
    """0.0123 -> '12.3 ms'; None -> '-'."""
    if seconds is None:
        return "-"
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms"


def _table(*left: str, right: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in left:
        table.add_column(title)
    for title in right:
        table.add_column(title, justify="right")
    return table


def _cell(text: str, style: str = "") -> Text:
    """What clients have sent must not reach the terminal as anything but letters."""
    return Text("".join(sign if sign.isprintable() else "\ufffd" for sign in text), style=style)


def _service(row: CallRow) -> str:
    name = f"{row.service or '-'} {row.version}".rstrip()
    return f"{name} (shadow)" if row.is_shadow else name


def _outcome(row: CallRow) -> str:
    return row.outcome if row.outcome == "ok" else f"{row.outcome} {row.error_code or row.status}"


def _number(count: int | None) -> str:
    return "?" if count is None else f"{count:,}"


def _share(part: int, whole: int) -> str:
    return f"{part:,} ({part / whole:.1%})" if part else "0"


def _percentile_texts(found: Percentiles | None) -> tuple[str, str, str]:
    if found is None:
        return "-", "-", "-"
    return seconds_text(found.p50_s), seconds_text(found.p95_s), seconds_text(found.p99_s)


def _group_text(name: str, value: str | float) -> str:
    if name in ("hour", "day"):
        moment = datetime.fromtimestamp(float(value), UTC)
        return moment.strftime("%Y-%m-%d" if name == "day" else "%Y-%m-%d %H:%MZ")
    return str(value) or "-"


def _clock(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s).astimezone().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
