"""Keeps samples as columns, and makes a curve of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from loadtest.curve import Curve, Series, Source
from loadtest.watching.source import Labels, Sample


@dataclass
class _Column:
    unit: str
    t_s: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)


@dataclass
class _Tally:
    samples: int = 0
    failures: int = 0
    last_error: str = ""


class Recorder:
    """One run's samples. Times come in on CLOCK_MONOTONIC and go out relative to the run's t0."""

    def __init__(self, sources: Iterable[str]) -> None:
        self._columns: dict[tuple[str, Labels], _Column] = {}
        self._tallies = {name: _Tally() for name in sources}

    def add(self, source: str, sample: Sample) -> None:
        """A time that is not after the one before (two samples at one tick of the clock) is left out."""
        self._tallies[source].samples += 1
        for reading in sample.readings:
            key = (reading.name, reading.labels)
            column = self._columns.get(key)
            if column is None:
                column = self._columns[key] = _Column(reading.unit)
            if not column.t_s or sample.t_s > column.t_s[-1]:
                column.t_s.append(sample.t_s)
                column.values.append(reading.value)

    def failed(self, source: str, why: str) -> None:
        tally = self._tallies[source]
        tally.failures += 1
        tally.last_error = why

    def latest(self, name: str) -> dict[Labels, float]:
        """The newest value of each series of that name. Safe to call from another thread."""
        columns = list(self._columns.items())
        return {labels: column.values[-1] for (of, labels), column in columns if of == name and column.values}

    def curve(self, t0_monotonic_s: float) -> Curve:
        series = tuple(
            Series(
                name,
                labels,
                column.unit,
                np.array(column.t_s, dtype=np.float64) - t0_monotonic_s,
                np.array(column.values, dtype=np.float64),
            )
            for (name, labels), column in sorted(self._columns.items())
        )
        sources = tuple(
            Source(name, tally.samples, tally.failures, tally.last_error)
            for name, tally in self._tallies.items()
        )
        return Curve(series, sources)
