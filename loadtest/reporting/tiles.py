"""The run in one glance: six figures of the measured window."""

from __future__ import annotations

from dataclasses import dataclass

from loadtest.measuring.metrics import Measured
from loadtest.reporting.wording import count, figure


@dataclass(frozen=True, slots=True)
class Tile:
    label: str
    value: str
    note: str


def tiles_of(measured: Measured) -> list[Tile]:
    offered, achieved = measured.rate("requests.offered"), measured.rate("requests.achieved")
    num = int(measured.rows().sum())
    errors, unfinished = measured.count("errors"), measured.count("censored")
    tokens = measured.rate("tokens.rate")
    found = [
        Tile("asked /s", _rate(offered), f"{num:,} requests in {measured.window.span_s:.0f} s"),
        Tile("answered /s", _rate(achieved), f"{_share(achieved, offered)} of asked"),
        Tile(
            "errors",
            count(None if errors is None else int(errors)),
            f"{int(unfinished or 0):,} unfinished" if unfinished else "none unfinished",
        ),
    ]
    if tokens:
        found.append(Tile("tokens/s", f"{tokens:,.4g}", f"{tokens * measured.window.span_s:,.0f} tokens"))
    if measured.is_streaming.any():
        found.append(_quantile(measured, "TTFT p99", "ttft.scheduled"))
    found.append(_quantile(measured, "latency p99", "latency.scheduled"))
    return found


def _quantile(measured: Measured, label: str, metric: str) -> Tile:
    at = measured.quantile(metric, 0.99)
    if not at.is_shown:
        return Tile(label, "–", f"n is {at.n:,}, needed are {at.n_needed:,}")
    if at.is_infinite:
        return Tile(label, "∞", "more than 1 % failed")
    return Tile(label, figure(at.value, "s"), f"{figure(at.low, 's')} … {figure(at.high, 's')}")


def _rate(value: float | None) -> str:
    return "–" if value is None else f"{value:,.4g}"


def _share(part: float | None, whole: float | None) -> str:
    return f"{100 * part / whole:.4g} %" if part is not None and whole else "–"
