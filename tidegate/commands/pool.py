"""`tidegate pool ...`: what the node's memory holds, and giving weights up or keeping them."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from tidegate.commands.errors import CommandError
from tidegate.commands.options import JsonOption, RunDirOption
from tidegate.commands.running import need_stack
from tidegate.console import note, out, print_json, size_text
from tidegate.pool_map import FREE, SIGNS, draw, letters

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from scaler.node_client import NodeClient

app = typer.Typer(
    help="Show the memory pool, evict or pin weights.",
    no_args_is_help=False,
    epilog="Keys of weights are in `tidegate pool show`.",
)

KeyArgument = Annotated[str, typer.Argument(help="Key of a weight set: NAME@PRECISION.", metavar="KEY")]

_BAR_CELLS = 30
_MAP_CELLS = 72
_STYLES = {FREE: "dim", "leased": "green", "published": "cyan", "cached": "yellow"}
Answer = TypeVar("Answer")


@app.command()
def show(run_dir: RunDirOption = None, as_json: JsonOption = False) -> None:
    """Show the KV pool, each model's part of it, and the weights that are resident."""
    from tidegate.cpu_tiers import read_cpu_flags, slow_tier_warnings
    from tidegate.status import plain

    stack = need_stack(run_dir)
    status = plain(_ask(run_dir, lambda node: node.status(with_extents=True)))
    warnings = slow_tier_warnings(stack.models, read_cpu_flags())
    if as_json:
        told = {key: status[key] for key in ("pool", "models", "weights", "extents")}
        print_json({**told, "warnings": warnings})
    else:
        _print(status, time.time())
    for text in warnings:
        note(f"tidegate: {text}")


@app.command()
def evict(key: KeyArgument, run_dir: RunDirOption = None, as_json: JsonOption = False) -> None:
    """Free the memory of weights that no model uses.

    They are loaded again when a model needs them. Weights in use, or pinned, stay: exit code 1.
    """
    from tidegate.status import plain

    evicted = _ask(run_dir, lambda node: node.evict_weights(key))
    if as_json:
        print_json({"evicted": plain(evicted)})
    else:
        print(f"{key} is evicted, {size_text(evicted.num_bytes)} freed")


@app.command()
def pin(
    key: KeyArgument,
    off: Annotated[bool, typer.Option("--off", help="Unpin: they may be evicted again.")] = False,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Keep weights resident whatever room others need, say for a version that you may roll back to."""
    from tidegate.status import plain

    pinned = _ask(run_dir, lambda node: node.pin_weights(key, not off))
    if as_json:
        print_json(plain(pinned))
    else:
        print(f"{key} is {'pinned' if pinned.is_pinned else 'not pinned any more'}")


def _ask(run_dir: Path | None, call: Callable[[NodeClient], Awaitable[Answer]]) -> Answer:
    """Raises NotRunning, CommandError."""
    from scaler.errors import ScaleError
    from scaler.node_client import NodeClient

    stack = need_stack(run_dir)
    if not stack.node_socket:
        raise CommandError(f"the stack in {stack.run_dir} has no memory node: none of its models needs one")

    async def ask() -> Answer:
        node = NodeClient(stack.node_socket)
        try:
            return await call(node)
        finally:
            await node.close()

    try:
        import asyncio

        return asyncio.run(ask())
    except ScaleError as exc:
        raise CommandError(str(exc)) from exc


def _print(status: dict[str, Any], now_unix_s: float) -> None:
    console = out()
    console.print(pool_text(status["pool"]))
    if status["pool"]["total_bytes"]:
        console.print(_map_text(status))
    console.print()
    console.print(_model_table(status["models"]))
    console.print()
    console.print(_weights_table(status["weights"], now_unix_s))
    console.print(_budget_text(status["pool"]), markup=False)


def pool_text(pool: dict[str, int]) -> Text:
    """The bar, and the numbers behind it."""
    from rich.text import Text

    total, leased, cached = pool["total_bytes"], pool["leased_bytes"], pool["cached_bytes"]
    if not total:
        return Text("KV pool: none, no model here has a KV cache")
    reading = max(0, total - pool["free_bytes"] - leased - cached)
    ends = [
        round(_BAR_CELLS * part / total) for part in (leased, leased + reading, leased + reading + cached)
    ]
    line = Text("KV pool ")
    line.append(SIGNS["leased"] * ends[0], style=_STYLES["leased"])
    line.append(SIGNS["published"] * (ends[1] - ends[0]), style=_STYLES["published"])
    line.append(SIGNS["cached"] * (ends[2] - ends[1]), style=_STYLES["cached"])
    line.append(SIGNS[FREE] * (_BAR_CELLS - ends[2]), style=_STYLES[FREE])
    line.append(f" {size_text(total)}\n")
    line.append(
        f"{size_text(leased)} leased, {size_text(reading)} prefixes being read, {size_text(cached)} cached,"
        f" {size_text(pool['free_bytes'])} free\n"
    )
    line.append(f"high water {size_text(pool['high_water_bytes'])}")
    if pool["recent_high_water_bytes"]:
        line.append(f" ({size_text(pool['recent_high_water_bytes'])} in the last minute)")
    line.append(f", largest free piece {size_text(pool['largest_free_bytes'])}")
    return line


def _map_text(status: dict[str, Any]) -> Text:
    from rich.text import Text

    total = status["pool"]["total_bytes"]
    cells = draw(status["extents"], total, _MAP_CELLS)
    text = Text()
    for cell in cells:
        text.append(SIGNS[cell.state], style=_STYLES[cell.state])
    names = letters([model["name"] for model in status["models"] if model["block_bytes"]])
    if len(names) > 1:
        text.append("\n" + "".join(names.get(cell.model, " ") for cell in cells))
        text.append("\n" + ", ".join(f"{letter} {name}" for name, letter in names.items()), style="dim")
    signs = ", ".join(f"{sign} {state}" for state, sign in SIGNS.items())
    text.append(f"\neach sign is {size_text(total / _MAP_CELLS)}: {signs}", style="dim")
    return text


def _model_table(models: Sequence[dict[str, Any]]) -> Table:
    rows = [
        (
            model["name"],
            _precision(model),
            _size_or_dash(model["kv_leased_bytes"], model),
            _size_or_dash(model["kv_published_bytes"], model),
            _limits(model),
            str(model["usable_blocks"]) if model["block_bytes"] else "-",
            _hit_rate(model),
        )
        for model in models
    ]
    titles = ("MODEL", "PRECISION", "LEASED", "PREFIXES", "FLOOR/CEILING", "USABLE", "HITS")
    return _table(titles, rows, right=range(2, 7))


def _weights_table(weights: Sequence[dict[str, Any]], now_unix_s: float) -> Table:
    rows = [
        (
            each["key"],
            size_text(each["num_bytes"]),
            "pinned" if each["is_pinned"] else "-",
            ", ".join(each["models"]) or "nobody",
            "now" if each["models"] else age_text(now_unix_s - each["last_used_unix_ms"] / 1000),
        )
        for each in weights
    ]
    return _table(("WEIGHTS", "SIZE", "PINNED", "USED BY", "LAST USED"), rows, right=(1,))


def _budget_text(pool: dict[str, int]) -> str:
    return f"weights take {size_text(pool['weights_bytes'])} of {size_text(pool['weights_budget_bytes'])}"


def _precision(model: dict[str, Any]) -> str:
    if not model["block_bytes"]:
        return str(model["precision"])
    return f"{model['precision']}, KV {model['kv_precision']}"


def _size_or_dash(num_bytes: int, model: dict[str, Any]) -> str:
    return size_text(num_bytes) if model["block_bytes"] else "-"


def _limits(model: dict[str, Any]) -> str:
    if not model["block_bytes"]:
        return "-"
    floor, ceiling = model["kv_floor_bytes"], model["kv_ceiling_bytes"]
    return f"{size_text(floor) if floor else 'none'}/{size_text(ceiling) if ceiling else 'none'}"


def _hit_rate(model: dict[str, Any]) -> str:
    looked_up = model["prefix_lookup_tokens"]
    return f"{model['prefix_hit_tokens'] / looked_up:.0%}" if looked_up else "-"


def age_text(seconds: float) -> str:
    """125 -> "2 min ago"."""
    if seconds < 60:
        return f"{max(0, int(seconds))} s ago"
    if seconds < 3600:
        return f"{int(seconds // 60)} min ago"
    return f"{int(seconds // 3600)} h ago"


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, title in enumerate(titles):
        table.add_column(title, justify="right" if index in right else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table
