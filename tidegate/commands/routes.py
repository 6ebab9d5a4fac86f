"""`tidegate routes`: is routes.yaml good, and is it in force?"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from tidegate.commands.errors import CommandError
from tidegate.commands.options import JsonOption, RunDirOption
from tidegate.commands.running import find_stack, need_stack
from tidegate.console import note, print_json

app = typer.Typer(help="Check routes.yaml, and see which routes are in force.")


@app.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="routes.yaml.")],
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Would the running stack take this file? Without a stack every model's name is taken.

    Exit code 1 when it is refused; every problem is told.
    """
    from tidegate.commands.rollout import AnyName
    from tidegate.routes_status import problems_of, served_models

    stack = find_stack(run_dir)
    if stack is None:
        note("no stack runs here: whether the models are served is not checked")
    problems = problems_of(file, AnyName() if stack is None else served_models(stack))
    if as_json:
        print_json({"file": str(file), "problems": problems})
    elif not problems:
        print(f"{file} is good")
    if problems:
        raise CommandError("\n".join(f"{file}: {problem}" for problem in problems))


@app.command()
def status(run_dir: RunDirOption = None, as_json: JsonOption = False) -> None:
    """Which revision is in force, and whether the file that the stack follows is.

    Exit code 1 when the file was refused.
    """
    from gateway.config import ConfigError
    from ledger.errors import LedgerError
    from tidegate.routes_status import routes_status

    try:
        found = routes_status(need_stack(run_dir))
    except (ConfigError, LedgerError) as exc:
        raise CommandError(str(exc)) from exc
    if as_json:
        print_json(asdict(found))
    elif found.revision:
        print(f"revision {found.revision} by {found.who}: {found.why or '-'}")
    else:
        print("no revision yet: every served model is a service of its own")
    if found.problems:
        problems = "\n".join(f"  {problem}" for problem in found.problems)
        raise CommandError(f"{found.path} is not taken, revision {found.revision} stays:\n{problems}")
    if found.path and not as_json:
        print(f"{found.path} is {'good and about to be taken' if found.is_pending else 'in force or was'}")
