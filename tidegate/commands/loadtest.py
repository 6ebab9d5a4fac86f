"""`tidegate loadtest`: hold a planned load on the running stack, and end in PASS, FAIL or INVALID."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from tidegate.commands.errors import BadOption, CommandError
from tidegate.commands.options import JsonOption
from tidegate.console import note, out, print_json

if TYPE_CHECKING:
    from loadtest.planning.plan import Plan
    from loadtest.running.result import RunResult

EXTRA = "loadtest"


class PlanOrCommand(TyperGroup):
    """`tidegate loadtest PLAN` is `tidegate loadtest run PLAN`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and not any(arg in self.commands or arg in ("-h", "--help") for arg in args[:1]):
            args = ["run", *args]
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed


app = typer.Typer(
    cls=PlanOrCommand,
    help=(
        "Hold a planned load on the stack: PASS, FAIL or INVALID.\n\n"
        "`tidegate loadtest PLAN` runs a plan. Exit codes: 0 PASS, 1 FAIL, 2 INVALID (too few samples, a late "
        "generator, no steady state, no data: nothing can be said)."
    ),
)

PlanArgument = Annotated[Path, typer.Argument(metavar="PLAN", help="A plan, see docs/loadtest.md.")]
FolderArgument = Annotated[Path, typer.Argument(metavar="FOLDER", help="What a run has left.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Another value for this run: load.shape.rate_per_s=5; repeat for more.",
    ),
]


@app.callback(invoke_without_command=True)
def loadtest(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())
        raise typer.Exit


@app.command()
def run(
    plan: PlanArgument,
    folder: Annotated[
        Path | None,
        typer.Option("--out", metavar="FOLDER", help="For what it leaves (default: runs/NAME-TIME)."),
    ] = None,
    settings: SetOption = None,
    run_dir: Annotated[
        Path | None, typer.Option("--run-dir", help="Of the stack that is tested (default: the plan's).")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run a plan. Progress goes to standard error; with --json the last line of standard output is one object."""
    need_extra()
    from loadtest.run import run_plan
    from loadtest.running.errors import RunError
    from loadtest.running.folder import default_folder
    from loadtest.running.stopping import stopped_by_signals
    from tidegate.commands.loadtest_live import LiveDisplay

    changes = [*(settings or ()), *([f"target.run_dir={run_dir}"] if run_dir else ())]
    checked, text = read_plan(plan, changes)
    into = folder or default_folder(checked, time.time())
    try:
        with stopped_by_signals(note) as stop, LiveDisplay() as display:
            result = run_plan(checked, into, plan_text=text, observer=display, stop=stop)
    except RunError as exc:
        raise CommandError(str(exc)) from exc
    tell(result, as_json)


@app.command()
def report(folder: FolderArgument, as_json: JsonOption = False) -> None:
    """Judge a run again from its raw rows, and write its report anew; nothing is sent."""
    need_extra()
    from loadtest.running.errors import RunError
    from loadtest.running.result import conclude

    try:
        result = conclude(folder)
    except RunError as exc:
        raise CommandError(str(exc)) from exc
    tell(result, as_json)


@app.command()
def check(plan: PlanArgument, settings: SetOption = None, as_json: JsonOption = False) -> None:
    """Is a plan valid, what would it send, and does it last long enough for its percentiles? Nothing is sent."""
    need_extra()
    from loadtest.judging.expression import ExpressionError
    from loadtest.running.forecast import forecast

    checked, _ = read_plan(plan, settings or ())
    try:
        found = forecast(checked)
    except ExpressionError as exc:
        raise BadOption("\n".join(f"{plan}: {finding}" for finding in exc.findings)) from exc
    if as_json:
        print_json(found.as_dict())
    else:
        for line in found.lines():
            print(line)
    raise typer.Exit(0 if found.is_long_enough else 2)


def need_extra() -> None:
    """Raises CommandError when the parts that only a load test needs are not installed."""
    from importlib.util import find_spec

    missing = [
        name for name in ("aiohttp", "scipy", "arro3.core", "arro3.io") if not _is_there(name, find_spec)
    ]
    if missing:
        raise CommandError(
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed; "
            f"pip install 'tidegate[{EXTRA}]'"
        )


def _is_there(name: str, find_spec: Any) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # the package around it is missing
        return False


def read_plan(path: Path, settings: list[str] | tuple[str, ...]) -> tuple[Plan, str]:
    """The plan and its text with the settings in it. Raises BadOption: a plan that can't be used is no run."""
    from loadtest.planning.plan import PlanError, parse_plan
    from loadtest.running.overrides import override

    try:
        text = override(path.read_text(), settings)
        return parse_plan(text, path.parent), text
    except FileNotFoundError as exc:
        raise BadOption(f"{path}: no such plan; docs/loadtest.md has one to begin with") from exc
    except (OSError, UnicodeDecodeError) as exc:
        raise BadOption(f"{path} can't be read: {exc}") from exc
    except PlanError as exc:
        raise BadOption("\n".join(f"{path}: {finding}" for finding in exc.findings)) from exc


def tell(result: RunResult, as_json: bool) -> None:
    """Print the verdict, and end with its exit code."""
    from loadtest.reporting.json_report import as_dict
    from tidegate.commands.loadtest_text import print_result

    if as_json:
        print_json(as_dict(result) | {"folder": str(result.folder)})
    else:
        print_result(out(), result)
    raise typer.Exit(result.judgement.verdict.exit_code)
