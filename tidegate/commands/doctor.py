"""`tidegate doctor`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import typer

from tidegate.commands.options import JsonOption, RunDirOption, readable_environ
from tidegate.commands.running import find_stack
from tidegate.console import out, print_json

if TYPE_CHECKING:
    from tidegate.doctor import Check

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(run_dir: RunDirOption = None, as_json: JsonOption = False) -> None:
    """Check this machine: what is wrong, and how to mend it.

    Exit code 1 when something would keep `tidegate up` from serving. Settings come from TIDEGATE_*, as in `up`.
    """
    from tidegate.doctor import diagnose, is_healthy
    from tidegate.settings import Settings

    settings = Settings.resolve(readable_environ(os.environ), run_dir=run_dir)
    checks = diagnose(settings, os.environ, find_stack(settings.run_dir))
    healthy = is_healthy(checks)
    if as_json:
        print_json({"healthy": healthy, "checks": checks})
    else:
        _print(checks)
        bad = [check for check in checks if check.state == "fail"]
        print(f"\n{len(bad)} to mend before `tidegate up`" if bad else "\nready to serve")
    if not healthy:
        raise typer.Exit(1)


def _print(checks: list[Check]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in checks:
        what = Text(check.text)
        if check.way_out:
            what.append(f"\n-> {check.way_out}", style="cyan")
        table.add_row(Text(check.state, style=_STYLES[check.state]), Text(check.name, style="bold"), what)
    out().print(table)
