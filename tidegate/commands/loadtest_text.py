"""A load test's verdict on a terminal: a row per expression, then the verdict and where the report lies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from loadtest.verdict import Verdict

if TYPE_CHECKING:
    from rich.console import Console

    from loadtest.running.result import RunResult
    from tidegate.launch_check.row import CheckRow

COLOURS = {Verdict.PASS: "green", Verdict.FAIL: "red", Verdict.INVALID: "yellow"}


def print_result(console: Console, result: RunResult) -> None:
    rows = result.judgement.rows
    print_rows(console, [(row.verdict, row.expression, row.why) for row in rows])
    verdict = result.judgement.verdict
    console.print(f"[bold {COLOURS[verdict]}]{verdict.value}[/]  {result.name}: {_reason(result)}")
    console.print(f"report: {result.folder / 'report.html'}", markup=False, soft_wrap=True)


def print_rows(console: Console, rows: Sequence[tuple[Verdict, str, str]]) -> None:
    """Verdict, what, why; the last is folded to the width that there is."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("verdict", "what", "why"):
        table.add_column(heading)
    for verdict, what, why in rows:
        table.add_row(Text(verdict.value, style=COLOURS[verdict]), Text(what), Text(why))
    console.print(table)


def _reason(result: RunResult) -> str:
    rows = result.judgement.rows
    verdict = result.judgement.verdict
    if not rows:
        return "nothing was judged"
    count = sum(row.verdict is verdict for row in rows)
    what = {Verdict.PASS: "pass", Verdict.FAIL: "fail", Verdict.INVALID: "can't be judged"}[verdict]
    return f"{count} of {len(rows)} rows {what}; {len(result.requests)} requests"


def print_check(console: Console, name: str, rows: Sequence[CheckRow], verdict: Verdict) -> None:
    print_rows(console, [(row.verdict, row.name, row.evidence) for row in rows])
    console.print(f"[bold {COLOURS[verdict]}]{verdict.value}[/]  launch of {name}", soft_wrap=True)
