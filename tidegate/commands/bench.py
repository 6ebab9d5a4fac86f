"""`tidegate bench NAME`. The benchmarks stand above this package, so they are found by name, never imported."""

from __future__ import annotations

import importlib
from typing import Annotated, Any

import typer

from tidegate.commands.errors import BadOption, CommandError
from tidegate.commands.options import JsonOption
from tidegate.console import note, out, print_json


def bench(
    name: Annotated[str, typer.Argument(metavar="NAME", help="One of `tidegate bench list`, or `list`.")],
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer runs: does it work, roughly how fast.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure headline figures on this machine, and their peers.

    Progress goes to standard error. With --json the last line of standard output is one object.
    """
    benches: dict[str, str] = importlib.import_module("benchmarks").BENCHES
    if name == "list":
        _list(as_json)
        return
    if name not in benches:
        raise BadOption(f"no benchmark {name!r}; there are {', '.join(benches)}")
    report: dict[str, Any] = _load(name, benches[name]).run(quick=quick, progress=note)
    if as_json:
        print_json(report)
    else:
        _print(report)


def _load(name: str, module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as exc:
        raise CommandError(
            f"benchmark {name!r} can't be loaded: {exc}; is tidegate installed whole?"
        ) from exc


def _list(as_json: bool) -> None:
    summaries: dict[str, str] = importlib.import_module("benchmarks").SUMMARIES
    if as_json:
        print_json({"benches": [{"name": name, "summary": text} for name, text in summaries.items()]})
        return
    for name, text in summaries.items():
        print(f"{name:<10} {text}")


def _print(report: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("FIGURE", no_wrap=True)
    for title in ("VALUE", "MIN", "MAX"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("UNIT")
    for who, figures in {"": report["figures"], **report.get("peers", {})}.items():
        for name, figure in figures.items():
            label = Text(f"{who}: {name}" if who else name, style="dim" if who else "")
            table.add_row(
                label, *(number(figure.get(key)) for key in ("value", "min", "max")), figure["unit"]
            )
    console = out()
    console.print(table)
    for peer, reason in report.get("skipped", {}).items():
        console.print(f"skipped {peer}: {reason}", markup=False)
    machine = report["machine"]
    console.print(
        f"{report['bench']}, {report['runs']} runs, {machine['cpus']} CPUs, GPU {machine['gpu'] or 'none'}, "
        f"commit {report['commit']}",
        markup=False,
        style="dim",
    )


def number(value: Any) -> str:
    """4 significant digits; lists and histograms as they are; absent is '-'."""
    if value is None:
        return "-"
    return f"{value:,.4g}" if isinstance(value, float) and abs(value) < 10_000 else str(value)
