"""Questions about single calls: which ones, in which order, page by page.

A page begins where the one before ended, by value and not by count: it costs the same on page 1,000 as on page 1,
and calls that are logged meanwhile shift nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Column, ColumnElement, Row, Select, select, tuple_

from ledger import schema
from ledger.calls import FIELDS, CallRow
from ledger.errors import FilterInvalid
from ledger.store import Store

Order = Literal["newest", "oldest", "slowest"]
MAX_PAGE_ROWS = 10_000
_table = schema.calls
_columns = [_table.c[name] for name in FIELDS]
_SAME = (
    "service",
    "version",
    "model",
    "tenant",
    "key_id",
    "request_id",
    "trace_id",
    "outcome",
    "endpoint",
    "instance",
)


@dataclass(frozen=True, kw_only=True)
class CallFilter:
    """Which calls are meant: those for which everything given here holds."""

    since_unix_s: float | None = None
    until_unix_s: float | None = None
    """Calls that started at this moment or later are not meant."""
    service: str | None = None
    version: str | None = None
    model: str | None = None
    tenant: str | None = None
    key_id: str | None = None
    request_id: str | None = None
    trace_id: str | None = None
    outcome: str | None = None
    endpoint: str | None = None
    instance: str | None = None
    is_shadow: bool | None = None

    def conditions(self) -> list[ColumnElement[bool]]:
        found: list[ColumnElement[bool]] = []
        if self.since_unix_s is not None:
            found.append(_table.c.started_unix_s >= self.since_unix_s)
        if self.until_unix_s is not None:
            found.append(_table.c.started_unix_s < self.until_unix_s)
        same = {name: value for name in _SAME if (value := getattr(self, name)) is not None}
        found.extend(_table.c[name] == value for name, value in same.items())
        # Said once more as the partial indexes say it: a bound value tells the planner nothing.
        if self.trace_id:
            found.append(schema.HAS_TRACE)
        if self.outcome == "error":
            found.append(schema.IS_ERROR)
        if self.is_shadow is not None:
            found.append(_table.c.is_shadow == self.is_shadow)
        return found


ALL_CALLS = CallFilter()


@dataclass(frozen=True)
class Page:
    calls: tuple[CallRow, ...]
    next: str | None
    """Give it as `after` for the page that follows; None: there is none."""


def find(
    store: Store,
    wanted: CallFilter = ALL_CALLS,
    *,
    order: Order = "newest",
    limit: int = 50,
    after: str | None = None,
) -> Page:
    """Raises FilterInvalid for an `after` that no page has given."""
    rows, following = _page(store, wanted, order, max(1, min(MAX_PAGE_ROWS, limit)), after)
    return Page(tuple(CallRow(**dict(zip(FIELDS, row, strict=False))) for row in rows), following)


def attempts(store: Store, request_id: str) -> tuple[CallRow, ...]:
    """All calls of one request in the order they were made; () when the log has none."""
    page = find(store, CallFilter(request_id=request_id), order="oldest", limit=MAX_PAGE_ROWS)
    return page.calls


def pages(store: Store, wanted: CallFilter, *, page_rows: int = 5_000) -> Iterator[list[tuple[Any, ...]]]:
    """All calls as plain values in the order of FIELDS, oldest first.

    No transaction is open between pages, so a slow reader holds nothing up.
    """
    after: str | None = None
    while True:
        rows, after = _page(store, wanted, "oldest", page_rows, after)
        if rows:
            yield [tuple(row)[:-1] for row in rows]
        if after is None:
            return


def _page(
    store: Store, wanted: CallFilter, order: Order, limit: int, after: str | None
) -> tuple[Sequence[Row[Any]], str | None]:
    query = _ordered(select(*_columns, _table.c.id).where(*wanted.conditions()), order, after)
    with store.read() as connection:
        # One more than wanted tells whether a page follows.
        rows = connection.execute(query.limit(limit + 1)).all()
    if len(rows) <= limit:
        return rows, None
    last = rows[limit - 1]
    return rows[:limit], f"{getattr(last, _sorted_by(order).name)!r}@{last.id}"


def _ordered(query: Select[Any], order: Order, after: str | None) -> Select[Any]:
    column = _sorted_by(order)
    place = tuple_(column, _table.c.id)
    if order == "oldest":
        query = query.order_by(column, _table.c.id)
        return query if after is None else query.where(place > tuple_(*_place(after)))
    query = query.order_by(column.desc(), _table.c.id.desc())
    return query if after is None else query.where(place < tuple_(*_place(after)))


def _sorted_by(order: Order) -> Column[Any]:
    return _table.c.duration_s if order == "slowest" else _table.c.started_unix_s


def _place(after: str) -> tuple[float, int]:
    value, _, row_id = after.partition("@")
    try:
        return float(value), int(row_id)
    except ValueError as exc:
        raise FilterInvalid(f"{after!r} is no place in the log; give what the page before said") from exc
