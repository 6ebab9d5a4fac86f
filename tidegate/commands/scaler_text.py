"""How `tidegate scaler` shows the scaler's answers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from contracts import scaler_pb2 as pb
from tidegate.commands.pool import age_text
from tidegate.console import print_table
from tidegate.status import plain

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

_SHORT = {"observed only": "observed", "follows the policy": "policy", "set by hand": "by hand"}
"""For a table that fits 80 columns."""

_STYLES = {"out": "bold green", "in": "bold cyan", "hold": ""}


def local_time(unix_s: float) -> str:
    """ "2026-12-24 18:00:00 CET", this machine's clock."""
    return datetime.fromtimestamp(unix_s).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def decision_line(decision: pb.Decision) -> str:
    """ "18:00:05 chat 2→4: queue 37 ≥ 20 for 3 s, ..."."""
    clock = datetime.fromtimestamp(decision.at_unix_s).strftime("%H:%M:%S")
    text = f"{clock} {decision.reason}"
    text += "; SATURATED" if decision.is_saturated else ""
    return f"{text}; failed: {decision.trouble}" if decision.trouble else text


def print_status(console: Console, found: pb.ScalerStatus) -> None:
    console.print(_head(found), markup=False)
    models = sorted(found.models, key=lambda model: model.model)
    if models:
        console.print()
        print_table(console, _model_table(models))
    for model in models:
        console.print()
        console.print(_story(model, found.now_unix_s))
    for problem in found.problems:
        console.print(_styled(f"problem: {problem}", "bold red"))


def _head(found: pb.ScalerStatus) -> str:
    revision = (
        f"policy revision {found.policy_revision}" if found.policy_revision else "no policy: observing only"
    )
    return f"{revision}, {found.target}, last tick {found.tick_age_s:.1f} s ago (every {found.tick_s:g} s)"


def _model_table(models: Sequence[pb.ModelStatus]) -> Table:
    titles = ("MODEL", "WANTED", "BOUNDS", "READY", "START", "DRAIN", "UTIL", "QUEUE", "LEAD", "STATE")
    rows = []
    for each in models:
        counts = each.counts if each.HasField("counts") else None
        rows.append(
            (
                each.model,
                str(each.wanted) if each.HasField("wanted") and each.is_managed else "-",
                f"{each.min_instances} to {each.max_instances}" if each.is_managed else "-",
                str(counts.ready) if counts else "?",
                str(counts.starting) if counts else "?",
                str(counts.draining) if counts else "?",
                _reading(each.signals.utilization, 2),
                _reading(each.signals.queue, 0),
                f"{each.lead_s:.1f} s",
                _SHORT.get(state := state_of(plain(each)), state),
            )
        )
    return _table(titles, rows, right=range(1, 9))


def _reading(reading: pb.Reading, digits: int) -> str:
    """ "0.91"; a figure that can't be used says why."""
    return f"{reading.value:.{digits}f}" if reading.quality == "good" else reading.quality or "missing"


def state_of(model: dict[str, Any]) -> str:
    """Who decides on it, of the JSON form."""
    if not model["is_managed"]:
        return "observed only"
    if model["pause"]:
        return "paused (all)" if model["pause"]["is_of_all"] else "paused"
    if model["override"]:
        return "set by hand"
    return "saturated" if model["is_saturated"] else "follows the policy"


def _story(model: pb.ModelStatus, now: float) -> Text:
    """The last decision, and what else bears on the next one."""
    text = _styled(model.model, "bold")
    if model.HasField("decision"):
        decision = model.decision
        text.append(f"  decided {age_text(now - decision.at_unix_s)}\n  ")
        text.append(decision.reason, style=_STYLES[decision.direction])
    else:
        text.append("\n  not decided yet")
    if model.HasField("change"):
        change = model.change
        text.append(
            f"\n  in progress for {now - change.since_unix_s:.0f} s: {change.num_before}→{change.num_wanted}",
            style="yellow",
        )
    if model.HasField("pause"):
        text.append(
            f"\n  paused {age_text(now - model.pause.since_unix_s)} by {_by(model.pause.who, model.pause.why)}"
        )
    if model.HasField("override"):
        override = model.override
        text.append(
            f"\n  {override.num_instances} until {local_time(override.until_unix_s)}, {override.reason}"
        )
    for floor in model.floors:
        text.append(f"\n  floor {floor.num_instances}: {floor.reason}")
    if model.forecast:
        text.append(f"\n  forecast {model.forecast}", style="dim")
    if model.last_error:
        text.append(
            f"\n  last failure {age_text(now - model.last_error_unix_s)}: {model.last_error}",
            style="bold red",
        )
    return text


def reservation_table(listed: Sequence[pb.Reservation]) -> Table:
    rows = [
        (
            each.name,
            each.model,
            str(each.min_instances),
            f"{each.start} to {each.end} {each.zone}",
            " ".join(each.days) if len(each.days) < 7 and "T" not in each.start else "",
            local_time(each.next_start_unix_s),
            "the policy" if each.is_of_policy else _by(each.who, each.why),
        )
        for each in listed
    ]
    titles = ("NAME", "MODEL", "INSTANCES", "WINDOW", "DAYS", "NEXT", "BY")
    return _table(titles, rows, right=(2,))


def history_lines(found: pb.Policy) -> list[str]:
    """ "revision 2, 2026-12-01 12:00:00 UTC, ada: launch", the newest first."""
    return [
        f"revision {each.revision}, {local_time(each.at_unix_s)}, {_by(each.who, each.why)}"
        for each in reversed(found.history)
    ]


def _by(who: str, why: str) -> str:
    by = who or "an operator"
    return f"{by}: {why}" if why else by


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, title in enumerate(titles):
        table.add_column(title, justify="right" if index in right else "left")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _styled(text: str, style: str) -> Text:
    from rich.text import Text

    return Text(text, style=style)
