"""Calls and their sums as tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from rich.table import Table
from rich.text import Text

from ledger.call_summary import Percentiles, Summary
from ledger.calls import CallRow

_STYLES = {"error": "bold red", "refused": "yellow", "cancelled": "dim"}


def call_values(row: CallRow) -> dict[str, Any]:
    return asdict(row)


def calls_table(rows: Sequence[CallRow]) -> Table:
    table = _table("time", "request", "tenant", "service", "outcome")
    for title in ("tokens", "TTFT", "took"):
        table.add_column(title, justify="right")
    for row in rows:
        table.add_row(
            _cell(_clock(row.started_unix_s)),
            _cell(row.request_id if row.attempt == 1 else f"{row.request_id} #{row.attempt}"),
            _cell(row.tenant or "-"),
            _cell(_service(row)),
            _cell(_outcome(row), _STYLES.get(row.outcome, "")),
            _cell(f"{_number(row.prompt_tokens)} + {_number(row.output_tokens)}"),
            _cell(seconds_text(row.ttft_s)),
            _cell(seconds_text(row.duration_s)),
        )
    return table


def call_details(row: CallRow) -> Table:
    """Every field that says something."""
    table = Table(
        title=f"attempt {row.attempt}", title_justify="left", show_header=False, box=None, pad_edge=False
    )
    for name, value in asdict(row).items():
        if name.endswith("unix_s"):
            value = _clock(value)
        elif name.endswith("_s"):
            value = None if value is None else seconds_text(value)
        if value not in (None, "", False):
            table.add_row(_cell(name.removesuffix("_unix_s").removesuffix("_s"), "dim"), _cell(str(value)))
    return table


def summary_table(groups: Sequence[str], found: Sequence[Summary]) -> Table:
    table = _table(*groups)
    for title in ("calls", "errors", "refused", "TTFT p50", "p95", "p99", "took p50", "p95", "p99"):
        table.add_column(title, justify="right")
    for title in ("tokens in", "cached", "out"):
        table.add_column(title, justify="right")
    for each in found:
        table.add_row(
            *(_cell(_group_text(name, value)) for name, value in each.group.items()),
            f"{each.num_calls:,}",
            _share(each.num_errors, each.num_calls),
            _share(each.num_refused, each.num_calls),
            *_percentile_texts(each.ttft),
            *_percentile_texts(each.duration),
            f"{each.prompt_tokens:,}",
            f"{each.cached_tokens:,}",
            f"{each.output_tokens:,}",
        )
    return table


def seconds_text(seconds: float | None) -> str:
    """0.0123 -> '12.3 ms'; None -> '-'."""
    if seconds is None:
        return "-"
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms"


def _table(*titles: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        table.add_column(title, overflow="fold")
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
