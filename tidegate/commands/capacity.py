"""`tidegate capacity`: the highest rate at which a plan still passes, with 1, 2, ... instances of a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.commands.errors import BadOption, CommandError
from tidegate.commands.loadtest import PlanArgument, SetOption, need_extra, read_plan
from tidegate.commands.options import JsonOption, RunDirOption
from tidegate.commands.running import need_stack
from tidegate.commands.scale import refuse_if_policy_decides
from tidegate.console import note, out, print_json, print_table

if TYPE_CHECKING:
    from contracts.stack import Stack
    from loadtest.capacity import RateSearch
    from loadtest.planning.plan import Plan


def capacity(
    plan: PlanArgument,
    model: Annotated[
        str,
        typer.Option("--model", metavar="NAME", help="Whose instances; default: the plan's only service."),
    ] = "",
    instances: Annotated[
        str, typer.Option("--instances", metavar="N,N", help="Counts to measure, one after another.")
    ] = "1",
    probe_s: Annotated[
        float,
        typer.Option(
            "--probe-s", min=20, help="How long each rate is held; longer where a percentile needs it."
        ),
    ] = 120.0,
    longest_probe_s: Annotated[
        float, typer.Option("--longest-probe-s", min=20, help="But no longer than this.")
    ] = 900.0,
    precision: Annotated[
        float,
        typer.Option(min=0.02, max=1, help="0.15: enough when the next rate, 15 % higher, does not pass."),
    ] = 0.15,
    probes: Annotated[int, typer.Option(min=1, max=50, help="Most rates tried for one count.")] = 10,
    folder: Annotated[
        Path, typer.Option("--out", metavar="FOLDER", help="For capacity.json and each probe's run.")
    ] = Path("runs/capacity"),
    settings: SetOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find the highest rate at which a plan still passes.

    Each probe is a whole run with its verdict; one that can no longer pass is ended early. INVALID is no PASS. What
    is found stands in capacity.json, for planners and `tidegate launch-check`. Exit code 1: no rate passed.
    """
    need_extra()
    from loadtest.capacity import RateSearch
    from loadtest.planning.load import OpenLoop
    from loadtest.probing import Probing

    stack = need_stack(run_dir)
    checked, text = read_plan(plan, [*(settings or ()), f"target.run_dir={stack.run_dir}"])
    if not isinstance(checked.load, OpenLoop):
        raise BadOption(f"{plan}: load.kind is {checked.load.kind}; capacity is a rate, so it must be open")
    if not checked.slo:
        raise BadOption(f"{plan}: has no slo lines, so every rate would pass")
    name = model or _only_service(checked)
    counts = _counts(instances)
    probing = Probing(checked, text, stack, name, folder, probe_s, longest_probe_s)
    found: dict[int, RateSearch] = {}
    for count in counts:
        _scale(stack, name, count)
        found[count] = search = RateSearch(probing.first_rate(), precision, probes)
        while (rate := search.next_rate()) is not None:
            note(f"{count} x {name}: {rate:g}/s")
            search.tell(probe := probing.probe(count, rate))
            note(f"{count} x {name}: {rate:g}/s {probe.verdict.value}{f': {probe.why}' if probe.why else ''}")
    path = probing.write(found)
    if as_json:
        print_json(probing.capacity(found))
    else:
        _print(name, found, path)
    if not any(search.passed for search in found.values()):
        raise typer.Exit(1)


def _only_service(plan: Plan) -> str:
    services = sorted({user.service for user in plan.users})
    if len(services) > 1:
        raise BadOption(f"the plan asks {', '.join(services)}; say with --model whose instances are changed")
    return services[0]


def _counts(text: str) -> list[int]:
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1 or len(set(counts)) != len(counts):
        raise BadOption(f"--instances = {text!r}, must be counts from 1 on, each once: 1,2,4")
    return counts


def _scale(stack: Stack, model: str, count: int) -> None:
    """As `tidegate scale` does. Raises CommandError where a policy would undo it."""
    from scaler.acting.by_hand import scale
    from scaler.errors import ScaleError

    refuse_if_policy_decides(stack, model, count)
    try:
        import asyncio

        asyncio.run(scale(stack, model, count, on_event=note, drain_timeout_s=60.0))
    except ScaleError as exc:
        raise CommandError(str(exc)) from exc


def _print(model: str, found: dict[int, RateSearch], path: Path) -> None:
    from rich.table import Table

    table = Table("INSTANCES", "RATE", "IN FLIGHT", "BUSY", "NEXT RATE", "WHY NOT", box=None, pad_edge=False)
    for count, search in found.items():
        best, above = search.passed, search.not_passed
        table.add_row(
            f"{count} x {model}",
            f"{best.rate_per_s:g}/s" if best else "none",
            f"{best.concurrency:.1f}" if best and best.concurrency is not None else "",
            f"{best.utilization:.0%}" if best and best.utilization is not None else "",
            f"{above.rate_per_s:g}/s {above.verdict.value}" if above else "not reached",
            above.why if above else "",
        )
    print_table(out(), table)
    print(f"written to {path}")
