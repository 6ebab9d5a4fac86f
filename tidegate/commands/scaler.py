"""`tidegate scaler ...`: what the scaler decides and why, and what operators say to it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.commands import scaler_policy
from tidegate.commands.errors import BadOption, CommandError
from tidegate.commands.options import JsonOption, RunDirOption, parse_duration
from tidegate.commands.scaler_connection import (
    AddressOption,
    CaOption,
    CertOption,
    Connection,
    KeyOption,
    TokenFileOption,
    ask,
    who,
)
from tidegate.console import out, print_json, print_table

if TYPE_CHECKING:
    from scaler.serving.service_client import ScalerClient

app = typer.Typer(help="See what is scaled and why; policies, pauses, reservations.")
app.add_typer(scaler_policy.app, name="policy")

ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="A model that the policy names.")]
ModelOrAll = Annotated[str | None, typer.Argument(metavar="MODEL", help="A model that the policy names.")]
ModelsArgument = Annotated[list[str] | None, typer.Argument(metavar="[MODEL]...", help="Default: all.")]
AllOption = Annotated[bool, typer.Option("--all", help="All models, those of later policies too.")]
WhyOption = Annotated[str, typer.Option("--why", metavar="TEXT", help="Shown to whoever looks later.")]


@app.callback(invoke_without_command=True)
def scaler(
    ctx: typer.Context,
    address: AddressOption = "",
    ca: CaOption = None,
    cert: CertOption = None,
    key: KeyOption = None,
    token_file: TokenFileOption = None,
) -> None:
    ctx.obj = Connection(address, ca, cert, key, token_file)
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())
        raise typer.Exit


@app.command()
def status(
    ctx: typer.Context,
    models: ModelsArgument = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show each model: wanted and ready instances, what was measured, and the last decision with its reason.

    UTIL of a generate model is the share of its places (64 an instance) that is taken, of others the share of time
    in which they work. On a CPU a chat model is slow long before its places are gone: there QUEUE decides, or a
    policy with scale_out.concurrency.
    """
    from tidegate.commands.scaler_text import print_status
    from tidegate.status import plain

    found = ask(ctx.obj, run_dir, lambda client: client.status(models or ()))
    if missing := set(models or ()) - {each.model for each in found.models}:
        raise CommandError(
            f"the scaler does not know {', '.join(sorted(missing))}; `tidegate scaler status` lists all"
        )
    if as_json:
        print_json(plain(found))
    else:
        print_status(out(), found)


@app.command()
def watch(
    ctx: typer.Context,
    models: ModelsArgument = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print a line per decision that changes something, or that has another reason than the one before."""
    from tidegate.commands.scaler_text import decision_line
    from tidegate.status import plain

    async def follow(client: ScalerClient) -> None:
        async for decision in client.watch(models or ()):
            if as_json:
                print_json(plain(decision))
            else:
                print(decision_line(decision), flush=True)

    ask(ctx.obj, run_dir, follow)


@app.command()
def pause(
    ctx: typer.Context,
    model: ModelOrAll = None,
    of_all: AllOption = False,
    why: WhyOption = "",
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change nothing of a model until `resume`, whatever its load. A change that runs is completed."""
    from contracts import scaler_pb2 as pb

    name = _one_or_all(model, of_all)
    ask(ctx.obj, run_dir, lambda client: client.pause(pb.PauseRequest(model=name, who=who(), why=why)))
    _told(
        {"paused": name or "all"}, f"{name or 'all models'}: paused until `tidegate scaler resume`", as_json
    )


@app.command()
def resume(
    ctx: typer.Context,
    model: ModelOrAll = None,
    of_all: AllOption = False,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let the policy decide again: ends a pause and a scale-to."""
    name = _one_or_all(model, of_all)
    ask(ctx.obj, run_dir, lambda client: client.resume(name))
    _told({"resumed": name or "all"}, f"{name or 'all models'}: the policy decides again", as_json)


@app.command("scale-to")
def scale_to(
    ctx: typer.Context,
    model: ModelArgument,
    num_instances: Annotated[int, typer.Argument(metavar="N", min=0, help="Within the policy's bounds.")],
    duration: Annotated[
        str, typer.Option("--for", metavar="TIME", help="90s, 10m, 2h; at most 7d.", show_default=True)
    ] = "1h",
    why: WhyOption = "",
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Hold a model at exactly N instances for a while, whatever load and reservations say.

    Returns at once; `status` tells how far the change is. `resume` ends it early.
    """
    from contracts import scaler_pb2 as pb
    from tidegate.commands.scaler_text import local_time
    from tidegate.status import plain

    request = pb.ScaleToRequest(
        model=model,
        num_instances=num_instances,
        duration_s=parse_duration("--for", duration),
        who=who(),
        why=why,
    )
    taken = ask(ctx.obj, run_dir, lambda client: client.scale_to(request))
    _told(plain(taken), f"{model}: {num_instances} instances until {local_time(taken.until_unix_s)}", as_json)


@app.command()
def reserve(
    ctx: typer.Context,
    model: ModelArgument,
    num_instances: Annotated[int, typer.Argument(metavar="N", min=1, help="At least so many in the window.")],
    start: Annotated[
        str, typer.Option("--from", metavar="TIME", help="09:00 for every day, 2026-12-24T18:00 for once.")
    ],
    end: Annotated[
        str,
        typer.Option("--to", metavar="TIME", help="As --from; an earlier time of day is on the next day."),
    ],
    zone: Annotated[str, typer.Option("--zone", help="Whose clock: Europe/Berlin, ...")] = "UTC",
    days: Annotated[
        str,
        typer.Option("--days", metavar="DAYS", help="On which it starts: mon,tue,fri (default: every day)."),
    ] = "",
    name: Annotated[
        str, typer.Option("--name", help="What `cancel` takes (default: made of model and times).")
    ] = "",
    why: WhyOption = "",
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Have at least N instances serving within a window. Reservations that overlap add up.

    Starts are due 30 s and the model's measured lead time before it. Until a start was measured 10 s are reckoned
    with; where it takes longer, set lead_time_s in the policy.
    """
    from contracts import scaler_pb2 as pb
    from tidegate.commands.scaler_text import local_time
    from tidegate.status import plain

    request = pb.ReserveRequest(
        model=model,
        name=name or f"{model}-{start}-{end}",
        start=start,
        end=end,
        zone=zone,
        days=[day.strip() for day in days.split(",") if day.strip()],
        min_instances=num_instances,
        who=who(),
        why=why,
    )
    made = ask(ctx.obj, run_dir, lambda client: client.reserve(request))
    first, last = local_time(made.next_start_unix_s), local_time(made.next_end_unix_s)
    rises_in_s = max(0.0, made.floor_rises_unix_s - time.time())
    lead_s = made.next_start_unix_s - made.floor_rises_unix_s
    text = f"{made.name}: {num_instances} of {model} from {first} to {last}"
    text += f"; starts are due {lead_s:.0f} s before it, in {rises_in_s:.0f} s"
    _told(plain(made), text, as_json)


@app.command()
def reservations(
    ctx: typer.Context,
    model: Annotated[str, typer.Argument(metavar="[MODEL]", help="Default: all.")] = "",
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the reservations of the policy and those made here, the next window first."""
    from tidegate.commands.scaler_text import reservation_table
    from tidegate.status import plain

    listed = ask(ctx.obj, run_dir, lambda client: client.reservations(model))
    if as_json:
        print_json({"reservations": [plain(each) for each in listed]})
    elif listed:
        print_table(out(), reservation_table(listed))
    else:
        print("nothing is reserved")


@app.command()
def cancel(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="As `reservations` lists it.")],
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Cancel a reservation. One of the policy is changed there."""
    ask(ctx.obj, run_dir, lambda client: client.cancel(name))
    _told({"cancelled": name}, f"{name}: cancelled", as_json)


def _one_or_all(model: str | None, of_all: bool) -> str:
    """What the calls take: a name, or "" for all."""
    if (model is None) != of_all:
        raise BadOption("name one model, or give --all")
    return model or ""


def _told(values: dict[str, object], text: str, as_json: bool) -> None:
    if as_json:
        print_json(values)
    else:
        print(text)
