"""Numbered texts that never change: routes and whatever else operators set for all gateways.

Taking something back is a new revision with the old text, so the history tells everything that was ever in force.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, insert, select

from ledger import schema
from ledger.errors import RevisionMoved
from ledger.store import Store


@dataclass(frozen=True)
class Revision:
    kind: str
    number: int
    """From 1, without gaps."""
    made_unix_s: float
    who: str
    why: str
    text: str


class RevisionStore:
    def __init__(self, store: Store) -> None:
        self._store = store

    def put(
        self,
        kind: str,
        text: str,
        who: str,
        *,
        why: str = "",
        expected: int | None = None,
        now: float | None = None,
    ) -> int:
        """The new revision's number; on the disk when it returns. `expected` is the number that the sender saw
        (0: none yet): raises RevisionMoved when another is in force by now."""
        with self._store.write() as connection:
            return self._put(connection, kind, text, who, why, expected, now)

    def put_from(self, source: str, kind: str, text: str, who: str, *, why: str, expected: int) -> int:
        """A revision of `kind`, and in the same transaction one of `source`, where the text came from: not one
        without the other, whatever happens between. `expected` is of `source`. Raises RevisionMoved."""
        with self._store.write() as connection:
            self._put(connection, source, text, who, "", expected, None)
            return self._put(connection, kind, text, who, why, None, None)

    def _put(
        self,
        connection: Connection,
        kind: str,
        text: str,
        who: str,
        why: str,
        expected: int | None,
        now: float | None,
    ) -> int:
        number = self._store.bump(connection, _counter(kind))
        if expected is not None and expected != number - 1:
            raise RevisionMoved(
                f"revision {number - 1} of {kind} is in force, not {expected}: somebody has set another "
                "meanwhile; look at it and send yours again"
            )
        made_unix_s = time.time() if now is None else now
        connection.execute(
            insert(schema.revisions).values(
                kind=kind, number=number, made_unix_s=made_unix_s, who=who, why=why, text=text
            )
        )
        return number

    def latest_number(self, kind: str) -> int:
        """0: none yet. One look at one row: made to be asked several times a second."""
        with self._store.read() as connection:
            return self._store.counter(connection, _counter(kind))

    def latest(self, kind: str) -> Revision | None:
        found = self.history(kind, limit=1)
        return found[0] if found else None

    def at(self, kind: str, number: int) -> Revision | None:
        table = schema.revisions
        with self._store.read() as connection:
            row = connection.execute(
                select(table).where(table.c.kind == kind, table.c.number == number)
            ).one_or_none()
        return None if row is None else _revision(row)

    def history(self, kind: str, *, limit: int = 50, before: int | None = None) -> list[Revision]:
        """Newest first; `before` a number, for the next page."""
        table = schema.revisions
        query = select(table).where(table.c.kind == kind).order_by(table.c.number.desc()).limit(limit)
        if before is not None:
            query = query.where(table.c.number < before)
        with self._store.read() as connection:
            return [_revision(row) for row in connection.execute(query)]

    async def wait(self, kind: str, after: int, *, poll_s: float = 0.3) -> Revision:
        """The latest revision, as soon as there is one above `after`."""
        while True:
            if await asyncio.to_thread(self.latest_number, kind) > after:
                latest = await asyncio.to_thread(self.latest, kind)
                if latest is not None:
                    return latest
            await asyncio.sleep(poll_s)


def _counter(kind: str) -> str:
    return f"revisions:{kind}"


def _revision(row: Row[Any]) -> Revision:
    return Revision(**row._mapping)
