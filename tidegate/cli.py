"""The command line: names, groups and help; what happens is in tidegate/commands/.

Exit codes: 0 done, 1 failed, 2 the command line is wrong, 3 no stack runs, 130 interrupted. A failure is one line
`tidegate: TEXT` on standard error; TIDEGATE_DEBUG=1 shows the traceback. Nothing heavy is imported before a
command is known to need it (test_help_is_quick_and_imports_no_torch).
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import Annotated

import typer

from tidegate.commands import (
    bench,
    calls,
    capacity,
    chat,
    doctor,
    keys,
    launch_check,
    loadtest,
    models,
    pool,
    rollout,
    routes,
    scale,
    scaler,
    simulate,
    status,
    top,
    trace,
    up,
)
from tidegate.commands.errors import CommandError

SERVE, TALK, LOOK = "Serve", "Use", "Look and measure"
HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}
# Of click, or of the copy that newer typer brings.
_UsageError = typer.BadParameter.__mro__[1]

app = typer.Typer(
    help="Serve models whose load has tides, on NVIDIA Triton: shared weights, instances in a quarter second.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings=HELP_OPTIONS,
    rich_markup_mode="rich",
    epilog=(
        "First steps: [bold]tidegate models fetch[/bold], [bold]tidegate up[/bold], and in another terminal "
        "[bold]tidegate chat[/bold], [bold]tidegate scale chat 3[/bold], [bold]tidegate status[/bold].\n\n"
        "Exit codes: 0 done, 1 failed, 2 wrong command line, 3 no stack runs, 130 interrupted. "
        "TIDEGATE_DEBUG=1 shows the traceback of a failure."
    ),
)


def _print_version(wanted: bool) -> None:
    if wanted:
        import importlib.metadata

        print(f"tidegate {importlib.metadata.version('tidegate')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    _help_if_alone(ctx)


@models.app.callback(invoke_without_command=True)
def _models(ctx: typer.Context) -> None:
    _help_if_alone(ctx)


@keys.app.callback(invoke_without_command=True)
@rollout.app.callback(invoke_without_command=True)
@routes.app.callback(invoke_without_command=True)
@pool.app.callback(invoke_without_command=True)
def _group(ctx: typer.Context) -> None:
    _help_if_alone(ctx)


def _help_if_alone(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())
        raise typer.Exit


app.command(rich_help_panel=SERVE)(up.up)
app.command(rich_help_panel=SERVE)(scale.scale)
app.add_typer(models.app, name="models", rich_help_panel=SERVE)
app.add_typer(keys.app, name="keys", rich_help_panel=SERVE)
app.add_typer(rollout.app, name="rollout", rich_help_panel=SERVE)
app.add_typer(routes.app, name="routes", rich_help_panel=SERVE)
app.command(rich_help_panel=TALK)(chat.chat)
app.command(rich_help_panel=LOOK)(doctor.doctor)
app.command(rich_help_panel=LOOK)(status.status)
app.command(rich_help_panel=LOOK)(top.top)
app.add_typer(calls.app, name="calls", rich_help_panel=LOOK)
app.command(rich_help_panel=LOOK)(trace.trace)
app.add_typer(pool.app, name="pool", rich_help_panel=LOOK)
app.add_typer(scaler.app, name="scaler", rich_help_panel=LOOK)
app.command(rich_help_panel=LOOK)(simulate.simulate)
app.command("capacity", rich_help_panel=LOOK)(capacity.capacity)
app.add_typer(loadtest.app, name="loadtest", rich_help_panel=LOOK)
app.command("launch-check", rich_help_panel=LOOK)(launch_check.launch_check)
app.command(rich_help_panel=LOOK)(bench.bench)


def main() -> None:
    code = run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # Who read our output has left (`tidegate bench list | head -1`); the interpreter must not try again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = code or 1
    sys.exit(code)


def run(args: list[str]) -> int:
    """The exit code of one command line."""
    try:
        result = app(args, prog_name="tidegate", standalone_mode=False)
    except Exception as exc:
        return _fail(exc)
    return result if isinstance(result, int) else 0


def _fail(error: Exception) -> int:
    if os.environ.get("TIDEGATE_DEBUG") == "1":
        traceback.print_exception(error)
    text, code = _text_and_code(error)
    print(f"tidegate: {text}", file=sys.stderr)
    return code


def _text_and_code(error: Exception) -> tuple[str, int]:
    if isinstance(error, CommandError):
        return str(error), error.exit_code
    if isinstance(error, typer.Abort):
        return "interrupted", 130
    if isinstance(error, _UsageError):
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "tidegate"
        return f"{error.format_message().rstrip('.')}; `{command} --help` tells more", 2  # type: ignore[attr-defined]
    if isinstance(error, OSError):
        return str(error), 1
    if _is_ours(error):
        return str(error), 1
    return f"{type(error).__name__}: {error}; this is a defect, TIDEGATE_DEBUG=1 shows where", 1


def _is_ours(error: Exception) -> bool:
    """Its text was written for a user."""
    from tidegate.launch_errors import LaunchError
    from tidegate.models.errors import ModelError

    return isinstance(error, (LaunchError, ModelError))
