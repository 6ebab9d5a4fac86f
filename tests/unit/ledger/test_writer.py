"""The writer's promises, with a database that is away when the test says so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, select

from ledger import schema, writer
from ledger.errors import LedgerUnavailable
from ledger.store import Store, sqlite_url
from ledger.writer import CallWriter
from tests.unit.ledger.rows import NOON, call


class FlakyStore(Store):
    """Answers nothing for the next `num_failures` changes."""

    num_failures = 0

    def write(self, **options: Any) -> AbstractContextManager[Connection]:
        if self.num_failures > 0:
            self.num_failures -= 1
            raise LedgerUnavailable("ledger.db: disk I/O error")
        return super().write(**options)


class Clock:
    now = NOON

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FlakyStore]:
    opened = FlakyStore.open(sqlite_url(tmp_path / "ledger.db"))
    yield opened
    opened.close()


def idle_writer(store: Store, **options: Any) -> CallWriter:
    """Its thread does nothing before it is closed."""
    return CallWriter(store, flush_s=3600, **options)


def logged(store: Store) -> list[tuple[str, str | None]]:
    with store.read() as connection:
        rows = connection.execute(
            select(schema.calls.c.request_id, schema.calls.c.prompt).order_by(schema.calls.c.id)
        )
        return [tuple(row) for row in rows]


def test_closing_writes_what_is_buffered(store: FlakyStore) -> None:
    """1,203 calls: two batches of 500 and one of 203, in order."""
    log = idle_writer(store)
    for number in range(1_203):
        log.put(call(number))
    assert log.close() == 0
    assert [name for name, _ in logged(store)] == [f"request-{number}" for number in range(1_203)]
    assert (log.stats().num_written, log.stats().num_buffered) == (1_203, 0)


def test_a_full_buffer_drops_the_newest_and_counts_them(store: FlakyStore) -> None:
    """Room for 3: calls 3 and 4 are dropped; a call after the end is, too."""
    log = idle_writer(store, max_buffered_rows=3)
    for number in range(5):
        log.put(call(number))
    log.close()
    log.put(call(5))
    assert [name for name, _ in logged(store)] == ["request-0", "request-1", "request-2"]
    assert log.stats().num_dropped == 3


def test_drops_are_said_once_a_minute(store: FlakyStore, caplog: pytest.LogCaptureFixture) -> None:
    """1 at once; 2 more after 30 s are kept back until 60 s have passed."""
    clock = Clock()
    log = idle_writer(store, max_buffered_rows=0, clock=clock)
    log.put(call())
    log._say_drops()
    clock.now += 30
    log.put(call())
    log.put(call())
    log._say_drops()
    assert [record.getMessage() for record in caplog.records] == [
        "call log: 1 rows dropped, the buffer of 0 is full"
    ]
    clock.now += 30
    log._say_drops()
    assert "call log: 2 rows dropped" in caplog.records[-1].getMessage()
    log.close()


def test_what_could_not_be_written_is_tried_again_in_order(
    store: FlakyStore, caplog: pytest.LogCaptureFixture
) -> None:
    """Away for two tries, the second at the end: the third writes all in order, and both turns are said."""
    log = idle_writer(store)
    store.num_failures = 2
    log.put(call(0))
    assert not log._write_all()
    assert log.stats().last_error == "ledger.db: disk I/O error"
    log.put(call(1))
    log.close()
    assert [name for name, _ in logged(store)] == ["request-0", "request-1"]
    assert log.stats().failing_since_unix_s is None
    assert ["will try again" in record.getMessage() for record in caplog.records] == [True, False]


def test_a_database_that_is_away_to_the_end_costs_what_is_buffered(
    store: FlakyStore, caplog: pytest.LogCaptureFixture
) -> None:
    """Two calls and no time left: 2 are lost, and the log says so."""
    log = idle_writer(store)
    store.num_failures = 1_000
    log.put(call(0))
    log.put(call(1))
    assert log.close(timeout_s=0) == 2
    assert "2 rows lost at the end: ledger.db: disk I/O error" in caplog.text


def test_of_too_much_text_the_call_is_kept_without_its_prompt(
    store: FlakyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room for 10 characters: prompts of 6 and 4 fit, one of 1 does not; after a flush there is room again."""
    monkeypatch.setattr(writer, "MAX_BUFFERED_PROMPT_CHARS", 10)
    log = idle_writer(store)
    for number, prompt in enumerate(["Hello?", "Why?", "!"]):
        log.put(call(number, prompt=prompt))
    log._write_all()
    log.put(call(3, prompt="Hello again"[:10]))
    log.close()
    assert [prompt for _, prompt in logged(store)] == ["Hello?", "Why?", None, "Hello agai"]
    assert log.stats().num_prompts_dropped == 1


def test_old_calls_go_when_their_days_are_over(store: FlakyStore) -> None:
    """Kept for 2 days, 5 calls of which 3 are older by then; the next look is 10 minutes later."""
    clock = Clock()
    log = idle_writer(store, keep_days=2, clock=clock)
    for number in range(5):
        log.put(call(number))
    log._write_all()
    clock.now = NOON + 3 + 2 * 86400
    log._prune_some()
    assert [name for name, _ in logged(store)] == ["request-3", "request-4"]
    log._prune_some()
    clock.now += writer.PRUNE_EVERY_S - 1
    log._prune_some()
    assert len(logged(store)) == 2
    clock.now += 1
    log._prune_some()
    assert logged(store) == []
    log.close()
