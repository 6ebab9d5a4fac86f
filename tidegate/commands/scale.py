"""`tidegate scale MODEL N`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.commands.errors import CommandError
from tidegate.commands.options import JsonOption, RunDirOption
from tidegate.commands.running import need_stack
from tidegate.console import note, print_json

if TYPE_CHECKING:
    from scaler.actuator import InstanceChange


def scale(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A served model: chat, embed, ...")],
    num_instances: Annotated[
        int, typer.Argument(metavar="N", min=1, help="How many instances it shall have.")
    ],
    drain_timeout_s: Annotated[
        float,
        typer.Option("--drain-timeout-s", min=0.0, help="How long requests on instances that go may take."),
    ] = 60.0,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Set a model's number of instances; no request fails.

    Instances that go are drained first. When they are not done in time, all serve on and the exit code is 1.
    """
    from scaler.actuator import scale as scale_model
    from scaler.errors import ScaleError

    stack = need_stack(run_dir)
    work = scale_model(stack, model, num_instances, on_event=note, drain_timeout_s=drain_timeout_s)
    try:
        result = asyncio.run(work)
    except ScaleError as exc:
        raise CommandError(str(exc)) from exc
    if as_json:
        print_json(result)
    else:
        print(_result_text(result))


def _result_text(result: InstanceChange) -> str:
    before, after = len(result.before), len(result.after)
    if before == after:
        plural = "" if after == 1 else "s"
        return f"{result.model}: has {after} instance{plural} already ({', '.join(result.after)})"
    changed = [f"+{name}" for name in result.added] + [f"-{name}" for name in result.removed]
    how = "in place" if result.in_place else "NOT in place: running instances were restarted"
    return f"{result.model}: {before} -> {after} instances ({' '.join(changed)}) in {result.ready_ms:.0f} ms, {how}"
