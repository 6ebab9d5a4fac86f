"""`tidegate status`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import typer

from tidegate.commands.options import JsonOption, RunDirOption
from tidegate.commands.pool import pool_text
from tidegate.commands.running import need_stack
from tidegate.console import note, out, print_json, size_text

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from tidegate.status import StackStatus


def status(run_dir: RunDirOption = None, as_json: JsonOption = False) -> None:
    """Show the running stack: processes, models, instances, memory.

    Exit code 3 when none runs, 1 when a part of it is gone or does not answer.
    """
    from tidegate.status import gather

    found = gather(need_stack(run_dir))
    if as_json:
        print_json(found)
    else:
        _print(found)
    for text in (*found.warnings, *found.problems):
        note(f"tidegate: {text}")
    if not found.is_whole:
        raise typer.Exit(1)


def _print(found: StackStatus) -> None:
    console = out()
    console.print(f"up {_duration(found.uptime_s)} in {found.run_dir}", markup=False)
    if found.gateway_http:
        console.print(
            f"OpenAI API {found.gateway_scheme}://{found.gateway_http}/v1, Triton gRPC {found.triton_grpc}",
            markup=False,
        )
    console.print()
    console.print(_process_table(found))
    if found.triton_models is not None or found.node is not None:
        console.print()
        console.print(_model_table(found))
    if found.scaler is not None:
        console.print(_scaler_text(found.scaler))
    if found.node is not None:
        console.print()
        by_age = sorted(found.node["instances"], key=lambda each: (each["model"], each["attached_unix_ms"]))
        console.print(_instance_table(by_age))
        console.print()
        console.print(_pool_text(found.node["pool"]))


def _process_table(found: StackStatus) -> Table:
    rows = [
        (
            process.name,
            str(process.pid),
            _good("alive") if process.is_alive else _bad("gone"),
            size_text(process.rss_bytes),
            str(process.num_threads),
        )
        for process in found.processes
    ]
    return _table(("PROCESS", "PID", "STATE", "RESIDENT", "THREADS"), rows, right=(1, 3, 4))


def _model_table(found: StackStatus) -> Table:
    node = {model["name"]: model for model in (found.node or {}).get("models", [])}
    triton = {model.name: model for model in found.triton_models or []}
    rows = []
    for name in sorted(node.keys() | triton.keys()):
        ours, theirs = node.get(name), triton.get(name)
        state = "?" if theirs is None else theirs.state
        rows.append(
            (
                name,
                ours["kind"] if ours else "-",
                _good(state)
                if state == "READY"
                else _bad(f"{state} {theirs.reason if theirs else ''}".strip()),
                str(ours["num_instances"]) if ours else "-",
                str(ours["num_spares"]) if ours else "-",
                size_text(ours["weights_bytes"]) if ours else "-",
                str(theirs.num_inferences) if theirs else "-",
                str(theirs.num_failed) if theirs else "-",
            )
        )
    titles = ("MODEL", "KIND", "TRITON", "INSTANCES", "SPARES", "WEIGHTS", "REQUESTS", "FAILED")
    return _table(titles, rows, right=range(3, 8))


def _scaler_text(scaler: dict[str, Any]) -> Text:
    """ "scaler: chat follows the policy (1 to 6, wants 2), embed observed only"."""
    from tidegate.commands.scaler_text import state_of

    parts = []
    for model in sorted(scaler["models"], key=lambda model: str(model["model"])):
        bounds = f"{model['min_instances']} to {model['max_instances']}"
        wanted = "" if model["wanted"] is None else f", wants {model['wanted']}"
        parts.append(
            f"{model['model']} {state_of(model)}" + (f" ({bounds}{wanted})" if model["is_managed"] else "")
        )
    return _plain(f"scaler: {', '.join(parts) or 'has not ticked yet'}")


def _instance_table(instances: Sequence[dict[str, Any]]) -> Table:
    rows = [
        (
            each["instance"],
            _instance_state(each),
            str(each["in_flight"]),
            str(each["num_running"]),
            str(each["num_waiting"]),
            str(each["landed"]),
            str(each["worker_pid"] or "none"),
            str(each["stub_pid"]),
            str(each["worker_restarts"]),
        )
        for each in sorted(instances, key=lambda each: (each["model"], each["attached_unix_ms"]))
    ]
    titles = ("INSTANCE", "STATE", "IN FLIGHT", "RUN", "WAIT", "LANDED", "WORKER", "STUB", "RESTARTS")
    return _table(titles, rows, right=range(2, 9))


def _instance_state(instance: dict[str, Any]) -> Text:
    if not instance["worker_pid"]:
        return _bad("no worker")
    return _good(instance["state"]) if instance["state"] == "serving" else _plain(instance["state"], "yellow")


def _pool_text(pool: dict[str, int]) -> Text:
    text = pool_text(pool)
    text.append(f"\nweights {size_text(pool['weights_bytes'])}, loaded once, shared by all workers")
    return text


def _table(titles: Sequence[str], rows: Iterable[Sequence[str | Text]], right: Iterable[int]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    numbers = set(right)
    for index, title in enumerate(titles):
        table.add_column(title, justify="right" if index in numbers else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(_plain(cell) if isinstance(cell, str) else cell for cell in row))
    return table


def _plain(text: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(text, style=style)


def _good(text: str) -> Text:
    return _plain(text, "green")


def _bad(text: str) -> Text:
    return _plain(text, "bold red")


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"
