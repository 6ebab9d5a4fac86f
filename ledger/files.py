"""Files that tenants upload and batches write. Whole in the database: they are bounded, and a backup has them."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, delete, func, insert, select

from ledger import schema
from ledger.errors import FilesFull
from ledger.store import Store

_TABLE = schema.files
_ABOUT = [column for column in _TABLE.c if column.name != "content"]


@dataclass(frozen=True)
class FileRow:
    """What is known of a file; its content is asked for by itself."""

    file_id: str
    tenant: str
    name: str
    purpose: str
    num_bytes: int
    made_unix_s: float


class FileStore:
    """Every question names a tenant: a file of another one is not there."""

    def __init__(self, store: Store, max_tenant_bytes: int) -> None:
        self._store = store
        self._max_tenant_bytes = max_tenant_bytes

    def add(self, tenant: str, name: str, purpose: str, content: bytes) -> FileRow:
        """Raises FilesFull."""
        with self._store.write() as connection:
            used = connection.execute(
                select(func.coalesce(func.sum(_TABLE.c.num_bytes), 0)).where(_TABLE.c.tenant == tenant)
            ).scalar_one()
            if used + len(content) > self._max_tenant_bytes:
                raise FilesFull(
                    f"the files of this tenant have {used:,} bytes, this one has {len(content):,}, and at most "
                    f"{self._max_tenant_bytes:,} are kept; delete some"
                )
            return insert_file(connection, tenant, name, purpose, content)

    def get(self, tenant: str, file_id: str) -> FileRow | None:
        with self._store.read() as connection:
            row = connection.execute(select(*_ABOUT).where(*_is(tenant, file_id))).one_or_none()
        return None if row is None else _file(row)

    def content(self, tenant: str, file_id: str) -> bytes | None:
        with self._store.read() as connection:
            found = connection.execute(select(_TABLE.c.content).where(*_is(tenant, file_id))).scalar()
        return None if found is None else bytes(found)

    def delete(self, tenant: str, file_id: str) -> bool:
        """False: there is none."""
        with self._store.write() as connection:
            return connection.execute(delete(_TABLE).where(*_is(tenant, file_id))).rowcount > 0

    def page(self, tenant: str, *, purpose: str | None, after: str | None, limit: int) -> list[FileRow]:
        """Newest first; `after`: the last one of the page before."""
        query = select(*_ABOUT).where(_TABLE.c.tenant == tenant)
        if purpose is not None:
            query = query.where(_TABLE.c.purpose == purpose)
        with self._store.read() as connection:
            if after is not None:
                last = select(_TABLE.c.made_unix_s).where(*_is(tenant, after)).scalar_subquery()
                query = query.where(_TABLE.c.made_unix_s < last)
            rows = connection.execute(query.order_by(_TABLE.c.made_unix_s.desc()).limit(limit))
            return [_file(row) for row in rows]


def insert_file(connection: Connection, tenant: str, name: str, purpose: str, content: bytes) -> FileRow:
    row = FileRow(f"file-{uuid.uuid4().hex}", tenant, name, purpose, len(content), time.time())
    connection.execute(insert(_TABLE).values(content=content, **vars(row)))
    return row


def _is(tenant: str, file_id: str) -> tuple[ColumnElement[bool], ...]:
    return _TABLE.c.tenant == tenant, _TABLE.c.file_id == file_id


def _file(row: Row[Any]) -> FileRow:
    return FileRow(**row._mapping)
