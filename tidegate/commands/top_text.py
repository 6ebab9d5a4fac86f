"""The screen of `tidegate top`: from the gateway's document to what rich draws. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tidegate.console import size_text
from tidegate.pool_map import SIGNS

BARS = "▁▂▃▄▅▆▇█"
NUM_BARS = 60
"""Of a spark line: the last five minutes."""
POOL_CELLS = 64
NUM_DECISIONS, NUM_ERRORS = 5, 3
STATE_STYLES = {"ok": "green", "waiting": "yellow", "down": "bold red", "off": "dim"}
MODEL_STYLES = ("blue", "dark_orange", "cyan", "magenta", "green", "yellow")


def screen(found: Mapping[str, Any], trouble: str) -> RenderableType:
    """Everything, for one look."""
    parts: list[RenderableType] = [_head(found, trouble), Text(), _tide(found), Text(), _models(found)]
    if found["pool"] is not None:
        parts += [Text(), _pool(found["pool"])]
    parts += [Text(), _routes(found["routes"])]
    for title, lines in (("decisions", _decisions(found)), ("errors", _errors(found))):
        if lines:
            parts += [Text(), Text(title, style="bold"), *lines]
    return Group(*parts)


def joined(before: Mapping[str, Any], after: Mapping[str, Any], kept: int) -> dict[str, Any]:
    """The history with its new steps at the end; another gateway's replaces it."""
    if not after["t"]:
        return dict(before)
    if before["t"] and after["t"][0] <= before["t"][-1]:
        return dict(after)
    old, new = len(before["t"]), len(after["t"])

    def column(models: Mapping[str, Any], name: str, key: str, length: int) -> list[float | None]:
        values: list[float | None] = models.get(name, {}).get(key) or [None] * length
        return values

    names = [*before["models"], *(name for name in after["models"] if name not in before["models"])]
    keys = {key for side in (before, after) for model in side["models"].values() for key in model}
    return {
        "t": [*before["t"], *after["t"]][-kept:],
        "models": {
            name: {
                key: [
                    *column(before["models"], name, key, old),
                    *column(after["models"], name, key, new),
                ][-kept:]
                for key in keys
            }
            for name in names
        },
        "node": {key: [*before["node"][key], *after["node"][key]][-kept:] for key in after["node"]},
    }


def spark(values: Sequence[float | None], top: float | None = None) -> str:
    """The last NUM_BARS values; a blank is not known, which is not the lowest bar."""
    shown = list(values)[-NUM_BARS:]
    known = [value for value in shown if value is not None]
    most = top or max(known, default=0.0) or 1.0
    return "".join(
        " " if value is None else BARS[min(len(BARS) - 1, int(value / most * len(BARS)))] for value in shown
    )


def _head(found: Mapping[str, Any], trouble: str) -> Text:
    text = Text("tidegate  ", style="bold")
    text.append(datetime.fromtimestamp(found["now_unix_s"]).strftime("%H:%M:%S"), style="not bold")
    for source in found["sources"]:
        text.append(
            f"   {source['name']} {source['state']}", style=f"not bold {STATE_STYLES[source['state']]}"
        )
        if source["state"] == "down":
            text.append(f" ({source['error'][:60]})", style="not bold dim")
    if trouble:
        text.append(f"\n{trouble}", style="bold red")
    return text


def _tide(found: Mapping[str, Any]) -> Table:
    history = found["history"]
    models = list(history["models"].values())
    table = _table("", "", "last 5 minutes", right=(1,))
    for label, key, unit in (
        ("requests", "arrivals", "/s"),
        ("in flight", "in_flight", ""),
        ("queue", "queue", ""),
        ("ready", "ready", ""),
        ("wanted", "wanted", ""),
        ("tokens", "tokens", "/s"),
    ):
        values = [_sum(step) for step in zip(*(model[key] for model in models), strict=True)]
        now = values[-1] if values else None
        table.add_row(label, _number(now) + (unit if now is not None else ""), spark(values))
    return table


def _models(found: Mapping[str, Any]) -> Table:
    minutes = found["window_s"] / 60
    table = _table(
        "MODEL", "READY", "BUSY", "QUEUE", "FLIGHT", "CALLS", "FAIL", "TTFT", "P99", "TOTAL", "P99", "TOK/S",
        right=range(1, 12),
    )  # fmt: skip
    table.caption = f"ready/wanted; calls and their times (median and p99) of the last {minutes:g} minutes"
    table.caption_justify = "left"
    for model in found["models"]:
        scaler, calls = model["scaler"] or {}, model["calls"]
        queue = scaler.get("queue")
        name = Text(model["model"], style="bold")
        if scaler.get("is_saturated"):
            name.append(" saturated", style="bold red")
        if scaler.get("paused"):
            name.append(" paused", style="yellow")
        table.add_row(
            name,
            f"{_number(scaler.get('ready'))}/{_number(scaler.get('wanted'))}",
            _share(scaler.get("utilization")),
            _number(model["pending"] if queue is None else queue),
            str(model["in_flight"]),
            str(calls["num"]),
            Text(str(calls["failed"]), style="red" if calls["failed"] else ""),
            *(_time(calls[key]) for key in ("ttft_p50_s", "ttft_p99_s", "latency_p50_s", "latency_p99_s")),
            f"{calls['tokens_per_s']:.1f}",
        )
    return table


def _pool(pool: Mapping[str, Any]) -> RenderableType:
    total = pool["total_bytes"] or 1
    text = Text("pool  ", style="bold")
    text.append(
        f"{size_text(pool['held_bytes'])} held ({pool['held_bytes'] / total:.0%}), "
        f"{size_text(pool['cached_bytes'])} cached, of {size_text(total)}\n",
        style="not bold",
    )
    names = [model["model"] for model in pool["models"]]
    found = pool["map"]
    if found is not None and found["cells"]:
        cells, kinds = found["cells"], found["kinds"]
        for at in range(POOL_CELLS):
            part = cells[at * len(cells) // POOL_CELLS : max(1, (at + 1) * len(cells) // POOL_CELLS)]
            used = [kind for kind in part if kind >= 0]
            kind = kinds[max(set(used), key=used.count)] if used else None
            sign = SIGNS["free"] if kind is None else SIGNS[kind["state"]]
            text.append(sign, style="dim" if kind is None else _color(kind["model"], names))
        text.append("\n")
    for model in pool["models"]:
        text.append(f"{model['model']} ", style=_color(model["model"], names))
        text.append(
            f"{size_text(model['held_bytes'])} + {size_text(model['cached_bytes'])} cached   ", style="dim"
        )
    return text


def _routes(routes: Mapping[str, Any]) -> Text:
    text = Text("routes  ", style="bold")
    split = [one for one in routes["services"] if len(one["versions"]) > 1]
    if not split:
        text.append("every service is one model", style="not bold dim")
    for service in split:
        shares = ", ".join(f"{version['name']} {version['percent']:g} %" for version in service["versions"])
        text.append(f"{service['service']}: {shares}   ", style="not bold")
    return text


def _decisions(found: Mapping[str, Any]) -> list[Text]:
    return [_decision(one) for one in reversed(found["decisions"][-NUM_DECISIONS:])]


def _decision(one: Mapping[str, Any]) -> Text:
    change = (
        f"{one['before']}→{one['wanted']}" if one["before"] != one["wanted"] else f"stays {one['wanted']}"
    )
    trouble = f"; failed: {one['trouble']}" if one["trouble"] else ""
    return _line(one["at_unix_s"], f"{one['model']} {change}: {one['reason']}{trouble}")


def _errors(found: Mapping[str, Any]) -> list[Text]:
    return [
        _line(
            one["at_unix_s"],
            f"{one['service']} {one['status']} {one['text']} (request {one['request_id']})",
            "red",
        )
        for one in found["errors"][:NUM_ERRORS]
    ]


def _line(at_unix_s: float, words: str, style: str = "") -> Text:
    text = Text(
        datetime.fromtimestamp(at_unix_s).strftime("%H:%M:%S "),
        style="dim",
        no_wrap=True,
        overflow="ellipsis",
    )
    text.append(words, style=f"not dim {style}".strip())
    return text


def _color(model: str, names: Sequence[str]) -> str:
    return MODEL_STYLES[names.index(model) % len(MODEL_STYLES)] if model in names else ""


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if value == int(value) or value >= 100 else f"{value:.1f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.3g} s"


def _table(*titles: str, right: Sequence[int]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    for index, title in enumerate(titles):
        table.add_column(title, justify="right" if index in right else "left", no_wrap=True)
    return table
