"""The latest traces in one SQLite file: written by the telemetry process, read by `tidegate trace` and the console.

Bounded by age and by number. What is there is a convenience for whoever has no collector; it may be deleted.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import msgspec

from contracts.tracing import names
from contracts.tracing.span import Event, Link, Span, SpanKind, SpanStatus, Value, unix_ns

STORE_NAME = "traces.db"
MAX_SPANS_OF_ONE = 2_000
"""Of one trace; more are not kept. A runaway client must not push all others out."""
READ_TIMEOUT_S = 2.0

Order = Literal["newest", "slowest"]

_SCHEMA = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = OFF;
CREATE TABLE IF NOT EXISTS traces (
    trace_id TEXT PRIMARY KEY, seen_unix_s REAL NOT NULL, num_spans INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS traces_seen ON traces (seen_unix_s);
CREATE TABLE IF NOT EXISTS spans (
    trace_id TEXT NOT NULL, span_id TEXT NOT NULL, parent_id TEXT NOT NULL, service TEXT NOT NULL,
    name TEXT NOT NULL, kind INTEGER NOT NULL, start_unix_ns INTEGER NOT NULL, end_unix_ns INTEGER NOT NULL,
    status INTEGER NOT NULL, status_text TEXT NOT NULL, request_id TEXT, more BLOB NOT NULL,
    PRIMARY KEY (trace_id, span_id)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS spans_request ON spans (request_id) WHERE request_id IS NOT NULL;
"""
_REQUESTS = """
SELECT request_id, trace_id, name, start_unix_ns, end_unix_ns, status, status_text, more FROM spans
WHERE service = ? AND request_id IS NOT NULL AND kind = ? AND start_unix_ns >= ?
"""


class StoreError(Exception):
    """The file of traces can't be read or written; the text says why."""


class _More(msgspec.Struct, frozen=True, array_like=True):
    attributes: dict[str, Value]
    events: list[Event]
    links: list[Link]


@dataclass(frozen=True)
class TracedRequest:
    """One line of a list of traces."""

    request_id: str
    trace_id: str
    name: str
    started_unix_s: float
    duration_s: float
    is_error: bool
    status_text: str
    kept_because: str


class TraceStore:
    """Not for several threads at once. Close it."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    @classmethod
    def create(cls, path: Path) -> Self:
        """For the one who writes. Raises StoreError."""
        try:
            connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            connection.executescript(_SCHEMA)
        except sqlite3.Error as exc:
            raise StoreError(f"{path}: {exc}") from exc
        path.chmod(0o600)
        return cls(connection)

    @classmethod
    def open(cls, path: Path) -> Self:
        """For readers. Raises StoreError when there is none."""
        if not path.exists():
            raise StoreError(f"there is no {path}")
        try:
            return cls(
                sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=READ_TIMEOUT_S)
            )
        except sqlite3.Error as exc:
            raise StoreError(f"{path}: {exc}") from exc

    def close(self) -> None:
        self._db.close()

    def add(self, spans: Sequence[Span], now_unix_s: float) -> None:
        """A span that is there already is replaced. Raises StoreError."""
        by_trace: dict[str, list[Span]] = {}
        for span in spans:
            by_trace.setdefault(span.trace_id, []).append(span)
        try:
            self._db.execute("BEGIN")
            for trace_id, of_one in by_trace.items():
                self._add_to(trace_id, of_one, now_unix_s)
            self._db.execute("COMMIT")
        except sqlite3.Error as exc:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise StoreError(str(exc)) from exc

    def _add_to(self, trace_id: str, spans: Sequence[Span], now_unix_s: float) -> None:
        row = self._db.execute("SELECT num_spans FROM traces WHERE trace_id = ?", (trace_id,)).fetchone()
        num_before = row[0] if row else 0
        kept = spans[: MAX_SPANS_OF_ONE - num_before]
        self._db.execute(
            "INSERT INTO traces VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET num_spans = num_spans + ?",
            (trace_id, now_unix_s, len(kept), len(kept)),
        )
        self._db.executemany(
            "INSERT OR REPLACE INTO spans VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", map(_row, kept)
        )

    def prune(self, before_unix_s: float, max_spans: int) -> None:
        """Whole traces, the oldest first. Raises StoreError."""
        try:
            (num_spans,) = self._db.execute("SELECT coalesce(sum(num_spans), 0) FROM traces").fetchone()
            doomed = []
            for trace_id, seen_unix_s, count in self._db.execute("SELECT * FROM traces ORDER BY seen_unix_s"):
                if seen_unix_s >= before_unix_s and num_spans <= max_spans:
                    break
                doomed.append((trace_id,))
                num_spans -= count
            if doomed:
                self._db.execute("BEGIN")
                self._db.executemany("DELETE FROM spans WHERE trace_id = ?", doomed)
                self._db.executemany("DELETE FROM traces WHERE trace_id = ?", doomed)
                self._db.execute("COMMIT")
        except sqlite3.Error as exc:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise StoreError(str(exc)) from exc

    def spans_of(self, trace_id: str) -> list[Span]:
        """By their start. Raises StoreError."""
        rows = self._ask("SELECT * FROM spans WHERE trace_id = ? ORDER BY start_unix_ns", trace_id)
        return [_span(row) for row in rows]

    def trace_ids_of(self, request_id: str) -> list[str]:
        """The newest last; several where a client repeats its ids. Raises StoreError."""
        rows = self._ask(
            "SELECT trace_id FROM spans WHERE request_id = ? GROUP BY trace_id ORDER BY min(start_unix_ns)",
            request_id,
        )
        return [row[0] for row in rows]

    def requests(
        self, order: Order, limit: int, *, only_errors: bool = False, since_unix_s: float = 0.0
    ) -> list[TracedRequest]:
        """Those that began at `since_unix_s` or later. Raises StoreError."""
        by = "start_unix_ns DESC" if order == "newest" else "end_unix_ns - start_unix_ns DESC"
        failed = f"AND status = {int(SpanStatus.ERROR)}" if only_errors else ""
        rows = self._ask(
            f"{_REQUESTS} {failed} ORDER BY {by} LIMIT ?",
            names.GATEWAY,
            SpanKind.SERVER,
            unix_ns(since_unix_s),
            limit,
        )
        return [_traced(row) for row in rows]

    def scalings(self, from_unix_ns: int, to_unix_ns: int) -> list[Span]:
        """Changes of the number of instances that ran at some moment of that time. Raises StoreError."""
        rows = self._ask(
            "SELECT * FROM spans WHERE service = ? AND start_unix_ns <= ? AND end_unix_ns >= ? "
            "ORDER BY start_unix_ns",
            names.SCALER,
            to_unix_ns,
            from_unix_ns,
        )
        return [_span(row) for row in rows]

    def _ask(self, statement: str, *values: object) -> list[Any]:
        try:
            return self._db.execute(statement, values).fetchall()
        except sqlite3.Error as exc:
            raise StoreError(str(exc)) from exc


def _row(span: Span) -> tuple[object, ...]:
    request_id = span.attributes.get(names.REQUEST_ID)
    return (
        span.trace_id,
        span.span_id,
        span.parent_id,
        span.service,
        span.name,
        int(span.kind),
        span.start_unix_ns,
        span.end_unix_ns,
        int(span.status),
        span.status_text,
        str(request_id) if request_id else None,
        msgspec.msgpack.encode(_More(span.attributes, span.events, span.links)),
    )


def _span(row: Sequence[Any]) -> Span:
    more = msgspec.msgpack.decode(row[11], type=_More)
    return Span(
        service=row[3],
        trace_id=row[0],
        span_id=row[1],
        parent_id=row[2],
        name=row[4],
        kind=SpanKind(row[5]),
        start_unix_ns=row[6],
        end_unix_ns=row[7],
        attributes=more.attributes,
        events=more.events,
        links=more.links,
        status=SpanStatus(row[8]),
        status_text=row[9],
    )


def _traced(row: Sequence[Any]) -> TracedRequest:
    request_id, trace_id, name, start_unix_ns, end_unix_ns, status, status_text, raw = row
    more = msgspec.msgpack.decode(raw, type=_More)
    return TracedRequest(
        request_id=request_id,
        trace_id=trace_id,
        name=name,
        started_unix_s=start_unix_ns / 1e9,
        duration_s=(end_unix_ns - start_unix_ns) / 1e9,
        is_error=status == SpanStatus.ERROR,
        status_text=status_text,
        kept_because=str(more.attributes.get(names.KEPT_BECAUSE, "")),
    )
