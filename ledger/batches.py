"""Batches of requests, and the answers that there are already: a batch outlives the gateway that works on it.

A gateway works on a batch while it holds its lease. Each line's answer is on the disk before the next is begun,
under the line's number, so a line that is asked twice, after a crash, has one answer all the same.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, delete, func, insert, select, update

from ledger import schema
from ledger.files import insert_file
from ledger.store import Store

LEASE_S = 30.0
"""A batch whose gateway was killed goes on after so long."""
RUNNING = ("in_progress", "cancelling")
_TABLE, _LINES = schema.batches, schema.batch_lines
_HIDDEN = {"owner", "lease_until_unix_s"}
_ABOUT = [column for column in _TABLE.c if column.name not in _HIDDEN]


@dataclass(frozen=True)
class BatchRow:
    tenant: str
    key_id: str
    """Whose limits it counts against."""
    endpoint: str
    input_file_id: str
    num_lines: int
    expires_unix_s: float
    metadata: str = "{}"
    """JSON, the client's own."""
    errors: str = "[]"
    """JSON: why it was refused whole."""
    status: str = "in_progress"
    batch_id: str = ""
    made_unix_s: float = 0.0
    cancelled_unix_s: float | None = None
    """When that was asked for."""
    ended_unix_s: float | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    num_completed: int = 0
    num_failed: int = 0


@dataclass(frozen=True)
class LineRow:
    """A line's answer. Lines are numbered from 0."""

    number: int
    is_error: bool
    text: str
    """JSON, without a line break."""


class BatchStore:
    """Clients' questions name a tenant: a batch of another one is not there."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def add(self, batch: BatchRow) -> BatchRow:
        row = replace(batch, batch_id=f"batch_{uuid.uuid4().hex}", made_unix_s=time.time())
        if row.status not in RUNNING:
            row = replace(row, ended_unix_s=row.made_unix_s)
        with self._store.write() as connection:
            connection.execute(insert(_TABLE).values(owner="", lease_until_unix_s=0.0, **vars(row)))
        return row

    def get(self, tenant: str, batch_id: str) -> BatchRow | None:
        with self._store.read() as connection:
            row = connection.execute(select(*_ABOUT).where(*_is(tenant, batch_id))).one_or_none()
            return None if row is None else _with_counts(connection, _batch(row))

    def page(self, tenant: str, *, after: str | None, limit: int) -> list[BatchRow]:
        """Newest first; `after`: the last one of the page before."""
        query = select(*_ABOUT).where(_TABLE.c.tenant == tenant)
        with self._store.read() as connection:
            if after is not None:
                last = select(_TABLE.c.made_unix_s).where(*_is(tenant, after)).scalar_subquery()
                query = query.where(_TABLE.c.made_unix_s < last)
            rows = connection.execute(query.order_by(_TABLE.c.made_unix_s.desc()).limit(limit)).all()
            return [_with_counts(connection, _batch(row)) for row in rows]

    def cancel(self, tenant: str, batch_id: str) -> bool:
        """False: it does not run (any more)."""
        with self._store.write() as connection:
            changed = connection.execute(
                update(_TABLE)
                .where(*_is(tenant, batch_id), _TABLE.c.status == "in_progress")
                .values(status="cancelling", cancelled_unix_s=time.time())
            )
            return changed.rowcount > 0

    def uses(self, tenant: str, file_id: str) -> bool:
        """Does one that runs read this file?"""
        query = select(func.count()).where(
            _TABLE.c.tenant == tenant, _TABLE.c.input_file_id == file_id, _TABLE.c.status.in_(RUNNING)
        )
        with self._store.read() as connection:
            return bool(connection.execute(query).scalar_one())

    def claim(self, owner: str, now: float) -> BatchRow | None:
        """The oldest one that nobody works on, for `LEASE_S`."""
        is_free = (_TABLE.c.status.in_(RUNNING), _TABLE.c.lease_until_unix_s < now)
        with self._store.read() as connection:
            oldest = select(*_ABOUT).where(*is_free).order_by(_TABLE.c.made_unix_s).limit(1)
            row = connection.execute(oldest).one_or_none()
        if row is None:
            return None
        with self._store.write() as connection:
            taken = connection.execute(
                update(_TABLE)
                .where(_TABLE.c.batch_id == row.batch_id, *is_free)
                .values(owner=owner, lease_until_unix_s=now + LEASE_S)
            )
            return _batch(row) if taken.rowcount else None

    def renew(self, owner: str, batch_id: str, now: float, *, lease_s: float = LEASE_S) -> str | None:
        """Its status; None: it is not the owner's any more. `lease_s` 0 gives it back."""
        mine = (_TABLE.c.batch_id == batch_id, _TABLE.c.owner == owner, _TABLE.c.status.in_(RUNNING))
        with self._store.write(is_durable=False) as connection:
            renewed = connection.execute(
                update(_TABLE)
                .where(*mine)
                .values(lease_until_unix_s=now + lease_s)
                .returning(_TABLE.c.status)
            ).scalar()
        return renewed

    def answered(self, batch_id: str) -> set[int]:
        """The numbers of the lines that have their answer."""
        with self._store.read() as connection:
            return set(
                connection.execute(select(_LINES.c.number).where(_LINES.c.batch_id == batch_id)).scalars()
            )

    def put(self, batch_id: str, lines: Sequence[LineRow]) -> None:
        """Those that are there already stay as they are."""
        with self._store.write() as connection:
            for line in lines:
                is_there = select(_LINES.c.number).where(
                    _LINES.c.batch_id == batch_id, _LINES.c.number == line.number
                )
                if connection.execute(is_there).scalar() is None:
                    connection.execute(insert(_LINES).values(batch_id=batch_id, **vars(line)))

    def finish(self, batch: BatchRow, status: str, now: float) -> None:
        """The answers become files, in the order of the lines; nothing happens a second time."""
        with self._store.write() as connection:
            rows = connection.execute(
                select(_LINES).where(_LINES.c.batch_id == batch.batch_id).order_by(_LINES.c.number)
            ).all()
            texts = {flag: [row.text for row in rows if row.is_error == flag] for flag in (False, True)}
            ended = connection.execute(
                update(_TABLE)
                .where(_TABLE.c.batch_id == batch.batch_id, _TABLE.c.status.in_(RUNNING))
                .values(
                    status=status,
                    ended_unix_s=now,
                    num_completed=len(texts[False]),
                    num_failed=len(texts[True]),
                    output_file_id=_write(connection, batch, "output", texts[False]),
                    error_file_id=_write(connection, batch, "error", texts[True]),
                )
            )
            if not ended.rowcount:
                connection.rollback()
                return
            connection.execute(delete(_LINES).where(_LINES.c.batch_id == batch.batch_id))


def _write(connection: Connection, batch: BatchRow, kind: str, texts: Sequence[str]) -> str | None:
    if not texts:
        return None
    content = "".join(f"{text}\n" for text in texts).encode()
    name = f"{batch.batch_id}_{kind}.jsonl"
    return insert_file(connection, batch.tenant, name, "batch_output", content).file_id


def _with_counts(connection: Connection, batch: BatchRow) -> BatchRow:
    """Of one that runs as they are now."""
    if batch.status not in RUNNING:
        return batch
    query = select(_LINES.c.is_error, func.count()).where(_LINES.c.batch_id == batch.batch_id)
    counts = {
        bool(is_error): count for is_error, count in connection.execute(query.group_by(_LINES.c.is_error))
    }
    return replace(batch, num_completed=counts.get(False, 0), num_failed=counts.get(True, 0))


def _is(tenant: str, batch_id: str) -> tuple[ColumnElement[bool], ...]:
    return _TABLE.c.tenant == tenant, _TABLE.c.batch_id == batch_id


def _batch(row: Row[Any]) -> BatchRow:
    return BatchRow(**row._mapping)
