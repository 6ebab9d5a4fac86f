"""Each kind of question finds its calls by an index: a log of a million calls is not read through."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from ledger.call_query import CallFilter, Order, find
from ledger.retention import delete_some
from ledger.store import Store, sqlite_url
from tests.unit.ledger.rows import NOON


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(sqlite_url(tmp_path / "ledger.db"))
    yield opened
    opened.close()


@pytest.fixture
def asked(store: Store) -> list[tuple[str, Any]]:
    """The statements of this test, with their values."""
    statements: list[tuple[str, Any]] = []

    def note(connection: Any, cursor: Any, statement: str, values: Any, context: Any, many: bool) -> None:
        statements.append((statement, values))

    event.listen(store._engine, "before_cursor_execute", note)
    return statements


def plan(store: Store, statement: str, values: Any) -> str:
    with store.read() as connection:
        rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values)
        return "; ".join(row.detail for row in rows)


@pytest.mark.parametrize(
    ("wanted", "order", "index"),
    [
        (CallFilter(), "newest", "SCAN tidegate_calls USING INDEX tidegate_calls_time"),
        (CallFilter(since_unix_s=NOON), "newest", "tidegate_calls_time (started_unix_s>?"),
        (CallFilter(since_unix_s=NOON), "oldest", "tidegate_calls_time (started_unix_s>?"),
        (CallFilter(since_unix_s=NOON), "slowest", "tidegate_calls_time (started_unix_s>?"),
        (CallFilter(service="chat"), "newest", "tidegate_calls_service (service=?"),
        (
            CallFilter(tenant="acme", since_unix_s=NOON),
            "newest",
            "tidegate_calls_tenant (tenant=? AND started",
        ),
        (CallFilter(key_id="k"), "newest", "tidegate_calls_key (key_id=?"),
        (CallFilter(request_id="r"), "oldest", "tidegate_calls_request (request_id=?"),
        (CallFilter(trace_id="t"), "newest", "tidegate_calls_trace (trace_id=?"),
        (CallFilter(outcome="error"), "newest", "USING INDEX tidegate_calls_errors"),
    ],
    ids=["all", "time", "oldest", "slowest", "service", "tenant", "key", "request", "trace", "errors"],
)
def test_a_question_is_answered_by_its_index(
    store: Store, asked: list[tuple[str, Any]], wanted: CallFilter, order: Order, index: str
) -> None:
    """The partial ones too, whose condition a bound value does not prove."""
    find(store, wanted, order=order)
    (statement,) = [each for each in asked if each[0].startswith("SELECT")]
    assert index in plan(store, *statement)


def test_the_page_after_a_place_begins_at_that_place(store: Store, asked: list[tuple[str, Any]]) -> None:
    """It searches for the place, and sorts nothing."""
    find(store, after=f"{NOON + 9}@7")
    (statement,) = [each for each in asked if each[0].startswith("SELECT")]
    assert plan(store, *statement).endswith(" USING INDEX tidegate_calls_time (started_unix_s<?)")


def test_old_calls_are_found_by_their_time(store: Store, asked: list[tuple[str, Any]]) -> None:
    """Deleting a thousand does not look at the others."""
    delete_some(store, NOON)
    (statement,) = [each for each in asked if each[0].startswith("DELETE FROM tidegate_calls")][:1]
    assert "tidegate_calls_time (started_unix_s<?)" in plan(store, *statement)
