"""A chart as data: what `contracts/web/charts.js` draws, and the table beside it says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from loadtest.records import Float

Color = Literal["blue", "dark-blue", "light-blue", "orange", "teal", "violet", "red", "grey"]


@dataclass(frozen=True)
class Line:
    """One series. NaN is a gap."""

    label: str
    values: Float
    color: Color
    low: Float | None = None
    high: Float | None = None
    dash: bool = False
    dots: bool = False
    steps: bool = False
    fill: bool = False


@dataclass(frozen=True)
class Level:
    """A value that is drawn across the whole plot."""

    value: float
    label: str
    color: Color = "red"


@dataclass(frozen=True)
class Chart:
    """One plot."""

    key: str
    title: str
    note: str
    """What exactly is drawn, in one or two sentences."""
    x: Literal["run", "percentile"]
    xs: Float
    unit: str
    lines: Sequence[Line]
    levels: Sequence[Level] = ()
    log: bool = False

    @property
    def has_data(self) -> bool:
        return any(np.isfinite(line.values).any() for line in self.lines)

    def spec(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "x": self.x,
            "xs": numbers(self.xs),
            "unit": self.unit,
            "log": self.log,
            "sync": "run" if self.x == "run" else None,
            "series": [_series(line) for line in self.lines],
            "lines": [{"value": at.value, "label": at.label, "color": at.color} for at in self.levels],
        }


def numbers(values: Float) -> list[float | None]:
    """Four significant digits are more than a screen shows; what is no number is null."""
    return [float(f"{value:.4g}") if np.isfinite(value) else None for value in values.tolist()]


def _series(line: Line) -> dict[str, Any]:
    said: dict[str, Any] = {"label": line.label, "values": numbers(line.values), "color": line.color}
    if line.low is not None and line.high is not None:
        said |= {"low": numbers(line.low), "high": numbers(line.high)}
    return said | {name: True for name in ("dash", "dots", "steps", "fill") if getattr(line, name)}
