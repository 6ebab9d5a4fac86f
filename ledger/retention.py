"""Deleting old calls a few at a time, so that no insert waits long for it.

SQLite's file does not shrink: the room is used again by later calls.
"""

from __future__ import annotations

from sqlalchemy import delete, select

from ledger import schema
from ledger.store import Store

SOME_ROWS = 250
"""Tens of milliseconds with a million calls in the log."""


def delete_some(store: Store, before_unix_s: float, *, num_rows: int = SOME_ROWS) -> int:
    """How many of the oldest calls were deleted; 0: none is older."""
    table = schema.calls
    oldest = (
        select(table.c.id)
        .where(table.c.started_unix_s < before_unix_s)
        .order_by(table.c.started_unix_s)
        .limit(num_rows)
    )
    with store.write(is_durable=False) as connection:
        deleted = connection.execute(delete(table).where(table.c.id.in_(oldest.scalar_subquery()))).rowcount
        connection.execute(delete(schema.writers).where(schema.writers.c.written_unix_s < before_unix_s))
    return int(deleted)
