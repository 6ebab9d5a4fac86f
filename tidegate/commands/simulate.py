"""`tidegate simulate TRACE`: what a policy would have done with recorded load."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.commands.errors import BadOption, CommandError
from tidegate.commands.options import JsonOption
from tidegate.console import note, out, print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scaler.simulation.figures import Figures
    from scaler.simulation.ours import Ours
    from scaler.simulation.queueing import Capacity
    from scaler.simulation.replay import Run
    from scaler.simulation.rival import Rival
    from scaler.simulation.series import Span
    from scaler.simulation.trace import Trace

PICTURES = (".png", ".html")
DEFAULT_RIVALS = ("static-peak", "thresholds", "hpa-like", "oracle")


def simulate(
    trace: Annotated[
        str,
        typer.Argument(
            metavar="TRACE",
            help="A CSV of seconds,count; or a public trace by its file or name: conv24, code24, code23, ...",
        ),
    ],
    policy: Annotated[
        Path | None,
        typer.Option("--policy", "-p", metavar="FILE", help="The policy, YAML; default: all defaults."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", metavar="NAME", help="Which model's, when it names several."),
    ] = None,
    startup_s: Annotated[
        float,
        typer.Option("--startup-s", min=0.0, max=3600.0, help="From a decision to the instance serving."),
    ] = 120.0,
    compare: Annotated[
        list[str] | None,
        typer.Option(
            "--compare",
            "-c",
            metavar="NAME",
            help="A rival, again and again: static-peak, static-mean, thresholds, thresholds-prop, hpa-like, "
            "knative-like, oracle; or all, none.",
        ),
    ] = None,
    peak_instances: Annotated[
        float,
        typer.Option(
            "--peak-instances",
            min=0.1,
            max=1000.0,
            help="What the busiest minute needs at 70 %: sets the capacity.",
        ),
    ] = 10.0,
    batch_gain: Annotated[
        float,
        typer.Option(
            "--batch-gain", min=1.0, max=1000.0, help="What full batches do over one request at a time."
        ),
    ] = 1.0,
    max_batch: Annotated[int, typer.Option("--max-batch", min=1, help="Of a full batch, with a gain.")] = 8,
    tick_s: Annotated[
        float, typer.Option("--tick-s", min=0.1, max=60.0, help="How often the scaler looks.")
    ] = 5.0,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", help="Draw it: .png, or .html with all decisions."),
    ] = None,
    from_h: Annotated[
        float, typer.Option("--from-h", min=0.0, help="Draw from this hour of the trace on.")
    ] = 0.0,
    to_h: Annotated[float | None, typer.Option("--to-h", help="Draw up to this hour.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Replay recorded load against the scaler's own decider, and against its rivals.

    Nothing runs and nothing is changed: the clock is a number, the queue a model.

    Cost: instance-seconds, those that start or drain included, over those of the static peak.
    A flip is a change taken back within 300 s.
    """
    from scaler.simulation.queueing import Capacity

    if plot is not None and plot.suffix.lower() not in PICTURES:
        raise BadOption(f"--plot = {plot}, must end in {' or '.join(PICTURES)}")
    ours = _ours(policy, model, tick_s)
    rivals = _rivals(DEFAULT_RIVALS if compare is None else compare)
    load = _load(trace)
    span = _span(load, from_h, to_h)
    if batch_gain > max_batch:
        raise BadOption(f"--batch-gain = {batch_gain:g}, must be at most --max-batch = {max_batch}")
    capacity = Capacity.for_peak(load, peak_instances, batch_gain=batch_gain, max_batch=max_batch)
    _warn(ours, capacity.needed(load.peak_per_s()))
    runs = [_replayed(load, rival, startup_s, tick_s, capacity) for rival in (ours, *rivals)]
    if plot is not None:
        _draw(plot, runs, capacity, span)
    if as_json:
        print_json(
            {
                "trace": load.name,
                "num_requests": load.num_requests,
                "length_s": load.length_s,
                "policies": [run.figures.to_dict() for run in runs],
            }
        )
    else:
        _print([run.figures for run in runs])


def _ours(path: Path | None, model: str | None, tick_s: float) -> Ours:
    from scaler.deciding.policy import ModelPolicy, Policy
    from scaler.errors import PolicyInvalid
    from scaler.simulation.ours import Ours

    if path is None:
        return Ours(ModelPolicy(), period_s=tick_s)
    try:
        models = Policy.read(path).models
    except PolicyInvalid as exc:
        raise CommandError(f"{path}: {exc}") from exc
    if model is None and len(models) == 1:
        return Ours(next(iter(models.values())), period_s=tick_s)
    if model is None or model not in models:
        raise BadOption(
            f"--model = {model}, must be one of those in {path}: {', '.join(models) or 'there is none'}"
        )
    return Ours(models[model], period_s=tick_s)


def _rivals(names: Sequence[str]) -> list[Rival]:
    """In the order in which tables show them. Raises BadOption."""
    from scaler.simulation.rivals import all_rivals

    known = all_rivals()
    wanted = {name for name in names if name != "none"}
    if "all" in wanted:
        return known
    if unknown := wanted - {rival.name for rival in known}:
        names_known = ", ".join(rival.name for rival in known)
        raise BadOption(f"--compare = {min(unknown)}, must be one of {names_known}, all, none")
    return [rival for rival in known if rival.name in wanted]


def _load(name: str) -> Trace:
    from scaler.simulation.trace import TraceError
    from scaler.simulation.traces import load

    try:
        return load(name)
    except TraceError as exc:
        raise CommandError(str(exc)) from exc


def _span(load: Trace, from_h: float, to_h: float | None) -> Span:
    from scaler.simulation.series import Span

    to_s = load.length_s if to_h is None else min(load.length_s, 3600.0 * to_h)
    if 3600.0 * from_h >= to_s:
        raise BadOption(f"--from-h = {from_h:g}, must be below {to_s / 3600.0:.2f} h, where the picture ends")
    return Span(3600.0 * from_h, to_s)


def _warn(ours: Ours, needed: int) -> None:
    if ours.policy.max_instances < needed:
        note(
            f"max_instances = {ours.policy.max_instances} is below the {needed} that the busiest minute needs; "
            "raise it, or lower --peak-instances"
        )


def _replayed(load: Trace, rival: Rival, startup_s: float, tick_s: float, capacity: Capacity) -> Run:
    from scaler.simulation.replay import run

    started_s = time.monotonic()
    done = run(load, rival, startup_s, tick_s=tick_s, capacity=capacity)
    note(f"{rival.name}: {load.length_s / 3600.0:.1f} h replayed in {time.monotonic() - started_s:.1f} s")
    return done


def _draw(path: Path, runs: list[Run], capacity: Capacity, span: Span) -> None:
    from scaler.simulation.page import save_html
    from scaler.simulation.plot import save_png

    # The grey area is the oracle already.
    drawn = [run for run in runs if run.policy != "oracle"]
    save = save_html if path.suffix.lower() == ".html" else save_png
    save(path, drawn, capacity, span)
    note(f"drawn in {path}")


def _print(figures: list[Figures]) -> None:
    """Fits 80 columns; --json has more."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("POLICY", no_wrap=True)
    for title in ("COST %", "≤ 5 s %", "≤ 30 s %", "LONGEST", "FLIPS", "CHANGES", "MOST"):
        table.add_column(title, justify="right", no_wrap=True)
    for item in figures:
        table.add_row(
            item.policy,
            f"{100 * item.cost_share:.1f}",
            f"{100 * item.started_5s_share:.3f}",
            f"{100 * item.started_30s_share:.3f}",
            f"{item.wait_max_s:.1f} s",
            str(item.flips),
            str(item.num_changes),
            str(item.peak_instances),
        )
    console = out()
    console.print(table)
    first = figures[0]
    console.print(
        f"{first.trace}, start-up {first.startup_s:g} s. Cost: of the static peak. ≤ 5 s: waited so long at most.",
        markup=False,
        style="dim",
    )
