"""`tidegate scaler policy ...`: the policy in force, another one, and a check that needs no stack."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.commands.errors import CommandError
from tidegate.commands.options import JsonOption, RunDirOption
from tidegate.commands.scaler_connection import ask, who
from tidegate.console import note, print_json

if TYPE_CHECKING:
    from scaler.deciding.policy import Policy

app = typer.Typer(help="Show, check and set the scaling policy.")
PolicyFile = Annotated[Path, typer.Argument(metavar="FILE", help="YAML; - for standard input.")]


@app.callback(invoke_without_command=True)
def policy(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())
        raise typer.Exit


@app.command()
def show(
    ctx: typer.Context,
    revision: Annotated[
        int, typer.Option("--revision", min=0, help="An earlier one (default: in force).")
    ] = 0,
    history: Annotated[bool, typer.Option("--history", help="List the revisions instead.")] = False,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the policy as it was written. `show --revision 3 | tidegate scaler policy set -` goes back to it."""
    from tidegate.commands.scaler_text import history_lines
    from tidegate.status import plain

    found = ask(ctx.obj, run_dir, lambda client: client.policy(revision))
    if as_json:
        print_json(plain(found))
    elif history:
        print("\n".join(history_lines(found)) or "there is no policy yet")
    elif found.revision.revision:
        print(found.text, end="" if found.text.endswith("\n") else "\n")
    else:
        note("there is no policy yet; nothing is scaled")


@app.command("set")
def set_policy(
    ctx: typer.Context,
    file: PolicyFile,
    why: Annotated[str, typer.Option("--why", metavar="TEXT", help="Kept in the history.")] = "",
    expect: Annotated[
        int, typer.Option("--expect", metavar="REVISION", min=0, help="Only if this one is in force.")
    ] = 0,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Set another policy. A bad one is refused with every problem in it, and the old one stays."""
    from contracts import scaler_pb2 as pb
    from tidegate.status import plain

    request = pb.SetPolicyRequest(text=_read(file), who=who(), why=why, expected_revision=expect)
    taken = ask(ctx.obj, run_dir, lambda client: client.set_policy(request))
    if as_json:
        print_json(plain(taken))
    else:
        print(f"revision {taken.revision} is in force")


@app.command()
def check(file: PolicyFile, as_json: JsonOption = False) -> None:
    """Check a policy file. Needs no running stack; exit code 1 when the scaler would refuse it."""
    from scaler.deciding.policy import Policy
    from scaler.errors import PolicyInvalid

    try:
        found, problems = Policy.parse(_read(file)), []
    except PolicyInvalid as exc:
        found, problems = Policy(), exc.problems
    if as_json:
        print_json({"is_valid": not problems, "problems": problems, "models": sorted(found.models)})
    elif not problems:
        print(f"{file}: {_summary(found)}")
    for problem in problems:
        note(f"{file}: {problem}")
    if problems:
        raise typer.Exit(1)


def _summary(found: Policy) -> str:
    models = [
        f"{name} {each.min_instances} to {each.max_instances}" for name, each in sorted(found.models.items())
    ]
    return f"scales {', '.join(models)}" if models else "names no model, so nothing would be scaled"


def _read(file: Path) -> str:
    """Raises CommandError."""
    try:
        return sys.stdin.read() if str(file) == "-" else file.read_text()
    except OSError as exc:
        raise CommandError(f"{file} can't be read: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise CommandError(f"{file} is no text: byte {exc.start} is {exc.object[exc.start]:#04x}") from exc
