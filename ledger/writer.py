"""Rows from the hot path to the database: `put` only appends to a bounded buffer, a thread inserts.

While the database is down the buffer is kept and tried again; when it is full, rows are dropped, counted, and said
once a minute. A batch whose commit's answer was lost is not written twice: its number is committed with it.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from sqlalchemy import Connection, insert, select, update
from sqlalchemy.exc import DataError, IntegrityError

from ledger import schema
from ledger.calls import CallRow, insert_calls
from ledger.errors import LedgerError
from ledger.retention import delete_some
from ledger.store import Store

logger = logging.getLogger("ledger")

FLUSH_S = 0.2
"""A SIGKILL loses the rows of this long, and those of the insert that runs."""
BATCH_ROWS = 500
MAX_BUFFERED_ROWS = 50_000
"""About 40 MB, and 50 s of 1,000 calls/s while the database is away."""
MAX_BUFFERED_PROMPT_CHARS = 32_000_000
MAX_RETRY_S = 5.0
SAY_EVERY_S = 60.0
PRUNE_EVERY_S = 600.0
_ROW_FAULTS = (DataError, IntegrityError, TypeError, ValueError, ArithmeticError)
"""Trying again would not help, and would keep all later rows out."""


@dataclass(frozen=True)
class WriterStats:
    num_written: int
    num_buffered: int
    """Put, and not known to be in the database."""
    num_dropped: int
    """The buffer was full, or the writer closed."""
    num_refused: int
    """The database takes rows, but not these; a defect, the log says more."""
    num_prompts_dropped: int
    """The row is there, its prompt is not: too much text was waiting."""
    failing_since_unix_s: float | None
    last_error: str


class CallWriter:
    """One per process. Close it, or use it as a context: what is buffered is written then."""

    def __init__(
        self,
        store: Store,
        *,
        keep_days: float | None = None,
        max_buffered_rows: int = MAX_BUFFERED_ROWS,
        flush_s: float = FLUSH_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`keep_days`: older calls are deleted, a few at a time between inserts; None: kept for ever."""
        self._store = store
        self._keep_days = keep_days
        self._max_buffered_rows = max_buffered_rows
        self._flush_s = flush_s
        self._clock = clock
        self._rows: deque[CallRow] = deque()
        self._batch: Sequence[CallRow] = ()
        self._name = uuid.uuid4().hex
        self._batch_number = 0
        self._prompt_chars = 0
        self._lock = threading.Lock()
        self._num_dropped = self._num_written = self._num_refused = self._num_prompts_dropped = 0
        self._failing_since: float | None = None
        self._last_error = ""
        self._said_at, self._said_dropped = float("-inf"), 0
        self._prune_at = clock()
        self._is_closing = False
        self._close_at = float("inf")
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="call-writer", daemon=True)
        self._thread.start()

    def put(self, row: CallRow) -> None:
        """Never blocks and never raises; from any thread."""
        if self._is_closing or len(self._rows) >= self._max_buffered_rows:
            with self._lock:
                self._num_dropped += 1
            return
        if row.prompt is not None:
            row = self._with_room_for_prompt(row)
        self._rows.append(row)
        if len(self._rows) == BATCH_ROWS:
            self._wake.set()

    def stats(self) -> WriterStats:
        return WriterStats(
            num_written=self._num_written,
            num_buffered=len(self._rows),
            num_dropped=self._num_dropped,
            num_refused=self._num_refused,
            num_prompts_dropped=self._num_prompts_dropped,
            failing_since_unix_s=self._failing_since,
            last_error=self._last_error,
        )

    def close(self, timeout_s: float = 10.0) -> int:
        """Writes what is buffered; for when nobody puts any more. How many rows were lost: 0, or the database was
        away to the end."""
        self._close_at = time.monotonic() + timeout_s
        self._is_closing = True
        self._wake.set()
        self._thread.join(timeout_s + 1.0)
        lost = len(self._rows)
        if lost:
            logger.error("call log: %d rows lost at the end: %s", lost, self._last_error)
        return lost

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- the thread ---

    def _run(self) -> None:
        retry_s = self._flush_s
        while True:
            self._wake.wait(self._pause_s(retry_s))
            self._wake.clear()
            is_last_round = self._is_closing
            if self._write_all():
                retry_s = self._flush_s
                self._prune_some()
            else:
                retry_s = min(MAX_RETRY_S, 2 * retry_s)
            self._say_drops()
            if is_last_round and (self._failing_since is None or time.monotonic() >= self._close_at):
                return

    def _pause_s(self, retry_s: float) -> float:
        """At the end there is no time for long waits."""
        if not self._is_closing:
            return retry_s
        return max(0.01, min(FLUSH_S, self._close_at - time.monotonic()))

    def _write_all(self) -> bool:
        """False: the database is away; the batch stays as it is, for the next try."""
        while batch := self._batch or self._next_batch():
            self._batch = batch
            try:
                self._write(batch)
            except Exception as exc:
                self._failed(exc)
                return False
            self._batch = ()
            for _ in batch:
                self._rows.popleft()
            self._free_prompts(batch)
        self._recovered()
        return True

    def _next_batch(self) -> Sequence[CallRow]:
        """They stay in the buffer until the database has them: what is counted as buffered is never too little."""
        batch = [self._rows[place] for place in range(min(BATCH_ROWS, len(self._rows)))]
        if batch:
            self._batch_number += 1
        return batch

    def _write(self, batch: Sequence[CallRow]) -> None:
        try:
            with self._store.write(is_durable=False) as connection:
                if self._mark(connection):
                    insert_calls(connection, batch)
            self._num_written += len(batch)
        except _ROW_FAULTS:
            self._write_singly(batch)

    def _write_singly(self, batch: Sequence[CallRow]) -> None:
        refused = 0
        with self._store.write(is_durable=False) as connection:
            if self._mark(connection):
                for row in batch:
                    try:
                        with connection.begin_nested():
                            insert_calls(connection, [row])
                    except _ROW_FAULTS as exc:
                        refused += 1
                        logger.error("call log: a row is not taken: %s", getattr(exc, "orig", exc))
        self._num_refused += refused
        self._num_written += len(batch) - refused

    def _mark(self, connection: Connection) -> bool:
        """False: this batch was committed before, only its answer was lost."""
        table = schema.writers
        mine = table.c.writer == self._name
        last = connection.execute(select(table.c.last_batch).where(mine)).scalar()
        now = self._clock()
        values = {"last_batch": self._batch_number, "written_unix_s": now}
        if last is None:
            connection.execute(insert(table).values(writer=self._name, **values))
        elif last >= self._batch_number:
            return False
        else:
            connection.execute(update(table).where(mine).values(values))
        return True

    def _prune_some(self) -> None:
        if self._keep_days is None or self._is_closing or self._clock() < self._prune_at:
            return
        try:
            if delete_some(self._store, self._clock() - self._keep_days * 86400) == 0:
                self._prune_at = self._clock() + PRUNE_EVERY_S
        except LedgerError as exc:
            self._prune_at = self._clock() + PRUNE_EVERY_S
            logger.warning("call log: old calls can't be deleted: %s", exc)

    def _with_room_for_prompt(self, row: CallRow) -> CallRow:
        num_chars = len(row.prompt or "")
        with self._lock:
            if self._prompt_chars + num_chars > MAX_BUFFERED_PROMPT_CHARS:
                self._num_prompts_dropped += 1
                return replace(row, prompt=None)
            self._prompt_chars += num_chars
            return row

    def _free_prompts(self, batch: Sequence[CallRow]) -> None:
        if num_chars := sum(len(row.prompt) for row in batch if row.prompt is not None):
            with self._lock:
                self._prompt_chars -= num_chars

    # --- what operators are told ---

    def _failed(self, error: Exception) -> None:
        self._last_error = str(error)
        if self._failing_since is None:
            self._failing_since = self._clock()
            logger.warning("call log: can't write, will try again: %s", error)

    def _recovered(self) -> None:
        if self._failing_since is not None:
            away_s = self._clock() - self._failing_since
            self._failing_since = None
            logger.warning("call log: writes again, after %.0f s", away_s)

    def _say_drops(self) -> None:
        now = self._clock()
        new = self._num_dropped - self._said_dropped
        if new and now - self._said_at >= SAY_EVERY_S:
            self._said_at, self._said_dropped = now, self._num_dropped
            logger.error(
                "call log: %d rows dropped, the buffer of %d is full%s",
                new,
                self._max_buffered_rows,
                f": {self._last_error}" if self._failing_since is not None else "",
            )
