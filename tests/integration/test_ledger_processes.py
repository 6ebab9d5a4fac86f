"""What the log of calls loses when a process or the database dies."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import select

from ledger import schema
from ledger.errors import LedgerUnavailable, LedgerUnreadable
from ledger.revisions import RevisionStore
from ledger.store import Store, sqlite_url
from ledger.writer import CallWriter
from tests.integration.postgres import running_postgres
from tests.unit.ledger.rows import call

pytestmark = pytest.mark.integration


def logged(store: Store) -> list[str]:
    with store.read() as connection:
        return list(
            connection.execute(select(schema.calls.c.request_id).order_by(schema.calls.c.id)).scalars()
        )


def numbered(num: int) -> list[str]:
    return [f"request-{number}" for number in range(num)]


def run_until(url: str, num_put: int, end: signal.Signals) -> tuple[int, int]:
    """Ends a process that logs once it has put so many; its last words: put, and perhaps not written."""
    command = [sys.executable, "-m", "tests.integration.ledger_process", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            said = line
            if int(line.split()[0]) >= num_put:
                break
        process.send_signal(end)
        # A kill may cut its last line.
        rest = [line for line in process.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
    num, buffered = (rest or [said])[-1].split()
    return int(num), int(buffered)


def test_a_kill_loses_only_what_was_still_buffered(tmp_path: Path) -> None:
    """Killed after 1,000 calls and more: those it did not count as buffered are there, in order, without a hole."""
    url = sqlite_url(tmp_path / "ledger.db")
    num_put, num_buffered = run_until(url, 1_000, signal.SIGKILL)
    store = Store.open(url)
    found = logged(store)
    assert len(found) >= num_put - num_buffered > 0
    assert found == numbered(len(found))
    assert sqlite3.connect(tmp_path / "ledger.db").execute("PRAGMA integrity_check").fetchone() == ("ok",)
    store.close()


def test_a_termination_loses_nothing(tmp_path: Path) -> None:
    """SIGTERM after 300 calls and more: every one is there."""
    url = sqlite_url(tmp_path / "ledger.db")
    num_put, num_buffered = run_until(url, 300, signal.SIGTERM)
    store = Store.open(url)
    assert num_buffered == 0
    assert logged(store) == numbered(num_put)
    store.close()


def test_calls_wait_for_a_database_that_is_away_and_are_there_once(caplog: pytest.LogCaptureFixture) -> None:
    """PostgreSQL is killed between calls 10 and 20 and starts again: all 30, in order; said once each way."""
    with running_postgres() as postgres:
        store = Store.open(postgres.new_database())
        with CallWriter(store) as writer:
            _put(writer, range(10))
            _wait_until(lambda: writer.stats().num_written == 10)
            postgres.stop()
            _put(writer, range(10, 20))
            _wait_until(lambda: writer.stats().failing_since_unix_s is not None)
            with pytest.raises(LedgerUnavailable, match="postgresql\\+psycopg://tidegate@"):
                RevisionStore(store).latest_number("routes")
            postgres.start()
            _put(writer, range(20, 30))
        assert logged(store) == numbered(30)
        store.close()
    said = [record.getMessage() for record in caplog.records if record.name == "ledger"]
    assert [text.split(",")[0] for text in said] == ["call log: can't write", "call log: writes again"]


def test_a_file_that_is_no_database_is_named_and_left_alone(tmp_path: Path) -> None:
    """A text of 4,000 bytes."""
    path = tmp_path / "ledger.db"
    path.write_bytes(b"notes " * 700)
    with pytest.raises(
        LedgerUnreadable, match=r"ledger.db: file is not a database. Nothing in it was changed"
    ):
        Store.open(sqlite_url(path))
    assert path.read_bytes() == b"notes " * 700


def _put(writer: CallWriter, numbers: range) -> None:
    for number in numbers:
        writer.put(call(number))


def _wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)
