"""`tidegate scale MODEL N`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.commands.errors import CommandError
from tidegate.commands.options import JsonOption, RunDirOption
from tidegate.commands.running import need_stack
from tidegate.console import note, print_json

MIN_CROWD, INSTANCES_PER_CPU = 8, 4

if TYPE_CHECKING:
    from contracts import scaler_pb2 as pb
    from contracts.stack import Stack
    from scaler.acting.actuator import InstanceChange


def scale(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A served model: chat, embed, ...")],
    num_instances: Annotated[
        int, typer.Argument(metavar="N", min=1, help="How many instances it shall have.")
    ],
    drain_timeout_s: Annotated[
        float,
        typer.Option("--drain-timeout-s", min=0.0, help="How long requests on instances that go may take."),
    ] = 60.0,
    force: Annotated[
        bool, typer.Option("--force", help="Also more instances than this machine's cores can feed.")
    ] = False,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Set a model's number of instances; no request fails.

    Instances that go are drained first. When they are not done in time, all serve on and the exit code is 1.
    A model that the scaler's policy names is refused unless it is paused: the scaler would undo it.
    """
    from scaler.acting.by_hand import scale as scale_model
    from scaler.errors import ScaleError

    stack = need_stack(run_dir)
    if not force:
        _refuse_a_crowd(num_instances)
    refuse_if_policy_decides(stack, model, num_instances)
    work = scale_model(stack, model, num_instances, on_event=note, drain_timeout_s=drain_timeout_s)
    try:
        import asyncio

        result = asyncio.run(work)
    except ScaleError as exc:
        raise CommandError(str(exc)) from exc
    if as_json:
        print_json(result)
    else:
        print(_result_text(result))


def _refuse_a_crowd(num_instances: int) -> None:
    """40 at once on two cores were so slow to start that Triton gave up on a stub and took all others along."""
    num_cpus = len(os.sched_getaffinity(0))
    most = max(MIN_CROWD, INSTANCES_PER_CPU * num_cpus)
    if num_instances > most:
        raise CommandError(
            f"{num_instances} instances on {num_cpus} CPUs would wait for one another; at most {most} are taken "
            "without --force"
        )


def refuse_if_policy_decides(stack: Stack, model: str, num_instances: int) -> None:
    """Not turned into a scale-to: that one ends by itself, and how soon is for the caller to say."""
    from scaler.errors import ScaleError

    if not stack.scaler_grpc:
        return
    try:
        import asyncio

        found = asyncio.run(_status_of(stack.scaler_grpc, model))
    except ScaleError as exc:
        return note(f"{exc}; when it is back it may change the count again")
    if any(each.is_managed and not each.HasField("pause") for each in found.models):
        raise CommandError(
            f"{model!r} follows the scaler's policy, which would undo this; hold it for a while with "
            f"`tidegate scaler scale-to {model} {num_instances} --for 1h`, or `tidegate scaler pause {model}` first"
        )


async def _status_of(address: str, model: str) -> pb.ScalerStatus:
    from tidegate.commands.scaler_connection import Connection

    client = Connection(address).client(None)
    try:
        return await client.status([model])
    finally:
        await client.close()


def _result_text(result: InstanceChange) -> str:
    before, after = len(result.before), len(result.after)
    if before == after:
        plural = "" if after == 1 else "s"
        return f"{result.model}: has {after} instance{plural} already ({', '.join(result.after)})"
    changed = [f"+{name}" for name in result.added] + [f"-{name}" for name in result.removed]
    how = "in place" if result.in_place else "NOT in place: running instances were restarted"
    return f"{result.model}: {before} -> {after} instances ({' '.join(changed)}) in {result.ready_ms:.0f} ms, {how}"
