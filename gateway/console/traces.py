"""One kept trace for the page: the spans of the file that the telemetry process writes, as rows of a waterfall."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from contracts.tracing.span import SpanStatus
from contracts.tracing.store import StoreError, TraceStore
from contracts.tracing.tree import Row, notes_of, rows_of
from gateway.errors import RouteNotFound

_TRACE_ID = re.compile(r"[0-9a-f]{32}")


def waterfall(store_path: str, trace_id: str) -> dict[str, Any]:
    """Blocks. Raises RouteNotFound, with what can be done, when there is nothing of it."""
    if not _TRACE_ID.fullmatch(trace_id):
        raise RouteNotFound("a trace id has 32 hexadecimal digits")
    if not store_path:
        raise RouteNotFound("this stack keeps no traces; it was started with --no-tracing")
    try:
        store = TraceStore.open(Path(store_path))
        try:
            spans = store.spans_of(trace_id)
        finally:
            store.close()
    except StoreError as exc:
        raise RouteNotFound(f"traces can't be read: {exc}") from exc
    if not spans:
        raise RouteNotFound(
            "nothing is kept of this trace: its spans come a second after the call, the latest days' are kept, and "
            "not every call is traced"
        )
    return {"trace_id": trace_id, "rows": [_row(row) for row in rows_of(spans)]}


def _row(row: Row) -> dict[str, Any]:
    span = row.span
    return {
        "name": span.name,
        "service": span.service,
        "depth": row.depth,
        "starts_s": row.starts_s,
        "ends_s": row.ends_s,
        "failed": span.status is SpanStatus.ERROR,
        "notes": notes_of(span),
        "attributes": {name: str(value) for name, value in span.attributes.items()},
        "events": [
            {"name": event.name, "at_s": row.starts_s + (event.at_unix_ns - span.start_unix_ns) / 1e9}
            for event in span.events
        ],
    }
