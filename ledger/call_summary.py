"""Figures over many calls.

Percentiles are of the nearest rank: p95 of 20 calls is the 19th fastest, a time that a call really took. They are
found here: SQLite has no function for it, and its window functions took many times as long over a million calls.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, case, func, select

from ledger import schema
from ledger.call_query import CallFilter
from ledger.errors import FilterInvalid
from ledger.store import Store

_table = schema.calls
_COUNTS = (
    "num_calls",
    "num_errors",
    "num_refused",
    "num_cancelled",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
)
_FETCH_ROWS = 10_000
_SPANS = {"hour": 3600, "day": 86400}
GROUPS = (
    "service",
    "version",
    "model",
    "tenant",
    "key_id",
    "endpoint",
    "instance",
    "door",
    "operation",
    "outcome",
    "status",
    "error_code",
    "finish_reason",
    "hour",
    "day",
)
"""What calls can be grouped by; `hour` and `day` are UTC's, told by the second they begin at."""


@dataclass(frozen=True)
class Percentiles:
    p50_s: float
    p95_s: float
    p99_s: float


@dataclass(frozen=True)
class Summary:
    """The calls that have one set of values in common."""

    group: dict[str, str | float]
    num_calls: int
    num_errors: int
    num_refused: int
    num_cancelled: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    ttft: Percentiles | None
    """None: no call has it."""
    duration: Percentiles | None


@dataclass(frozen=True)
class Counts:
    """As `Summary`, without times, which cost a look at every call."""

    group: dict[str, str | float]
    num_calls: int
    num_errors: int
    num_refused: int
    num_cancelled: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


def count(store: Store, wanted: CallFilter, by: Sequence[str] = ()) -> tuple[Counts, ...]:
    """Counts per group that has calls, in the groups' order. Raises FilterInvalid."""
    names = _checked(by)
    with store.read() as connection:
        rows = connection.execute(_counts(wanted, [_group(name) for name in names])).all()
    return tuple(_counted(row, names) for row in rows if row.num_calls)


def _counted(row: Row[Any], names: Sequence[str]) -> Counts:
    values = row._asdict()
    group = dict(zip(names, row, strict=False))
    return Counts(group, **{name: int(values[name]) for name in _COUNTS})


def _checked(by: Sequence[str]) -> list[str]:
    if unknown := [name for name in by if name not in GROUPS]:
        raise FilterInvalid(f"calls can't be grouped by {', '.join(unknown)}; use {', '.join(GROUPS)}")
    return list(dict.fromkeys(by))


def summarize(store: Store, wanted: CallFilter, by: Sequence[str] = ("service",)) -> tuple[Summary, ...]:
    """A summary per group that has calls, in the groups' order. Raises FilterInvalid."""
    names = _checked(by)
    groups = [_group(name) for name in names]
    with store.read() as connection:
        times = _times(connection, wanted, groups)
        rows = connection.execute(_counts(wanted, groups)).all()
    return tuple(_summary(row, times, names) for row in rows if row.num_calls)


def _summary(
    row: Row[Any],
    times: Mapping[tuple[Any, ...], tuple[Percentiles | None, Percentiles | None]],
    names: Sequence[str],
) -> Summary:
    values = row._asdict()
    key = tuple(row[: len(names)])
    ttft, duration = times.get(key, (None, None))
    return Summary(
        group=dict(zip(names, key, strict=True)),
        ttft=ttft,
        duration=duration,
        **{name: int(values[name]) for name in _COUNTS},
    )


def _group(name: str) -> ColumnElement[Any]:
    if name in _SPANS:
        return (func.floor(_table.c.started_unix_s / _SPANS[name]) * _SPANS[name]).label(name)
    return _table.c[name]


def _counts(wanted: CallFilter, groups: Sequence[ColumnElement[Any]]) -> Any:
    outcome = _table.c.outcome
    return (
        select(
            *groups,
            func.count().label("num_calls"),
            func.count(case((outcome == "error", 1))).label("num_errors"),
            func.count(case((outcome == "refused", 1))).label("num_refused"),
            func.count(case((outcome == "cancelled", 1))).label("num_cancelled"),
            func.coalesce(func.sum(_table.c.prompt_tokens), 0).label("prompt_tokens"),
            func.coalesce(func.sum(_table.c.cached_tokens), 0).label("cached_tokens"),
            func.coalesce(func.sum(_table.c.output_tokens), 0).label("output_tokens"),
        )
        .where(*wanted.conditions())
        .group_by(*groups)
        .order_by(*groups)
    )


def _times(
    connection: Connection, wanted: CallFilter, groups: Sequence[ColumnElement[Any]]
) -> dict[tuple[Any, ...], tuple[Percentiles | None, Percentiles | None]]:
    """Per group, of TTFT and duration."""
    query = select(*groups, _table.c.ttft_s, _table.c.duration_s).where(*wanted.conditions())
    times: dict[tuple[Any, ...], tuple[array[float], array[float]]] = {}
    for *group, ttft_s, duration_s in connection.execution_options(yield_per=_FETCH_ROWS).execute(query):
        key = tuple(group)
        if key not in times:
            times[key] = (array("d"), array("d"))
        ttfts, durations = times[key]
        durations.append(duration_s)
        if ttft_s is not None:
            ttfts.append(ttft_s)
    return {key: (percentiles(ttfts), percentiles(durations)) for key, (ttfts, durations) in times.items()}


def percentiles(times_s: Sequence[float]) -> Percentiles | None:
    if not times_s:
        return None
    ordered = sorted(times_s)
    return Percentiles(*(ordered[math.ceil(len(ordered) * percent / 100) - 1] for percent in (50, 95, 99)))
