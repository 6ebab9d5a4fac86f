"""The database: opened, checked, and its errors turned into ours.

What can be lost (SQLite keeps its WAL beside the file):

| after | the log of calls | keys and revisions |
|---|---|---|
| SIGTERM | nothing, `CallWriter.close` writes the rest | nothing |
| SIGKILL | what the writer had not inserted: its last 0.2 s and the insert that runs | nothing |
| power cut | as SIGKILL; in SQLite also what came since the last checkpoint (4 MB, some 10,000 calls) | nothing |

The difference is `is_durable`: such a change is forced to the disk before it counts, for a revoked key must not
come back. The database itself stays whole in every case. SQLite's WAL needs shared memory: no network file system.
"""

from __future__ import annotations

import math
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import sqlalchemy
from sqlalchemy import Connection, Engine, event, insert, inspect, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from ledger import schema
from ledger.errors import LedgerUnavailable, LedgerUnreadable, UrlInvalid

FILE_NAME = "ledger.db"
"""In the stack's folder, unless a URL is set."""
BUSY_TIMEOUT_S = 5.0
"""How long a change waits for another process's."""
_SCHEMA_LOCK = 0x7469_6465
"""Any number that nobody else takes: two gateways that start at once must not both make the tables."""


def sqlite_url(path: Path) -> str:
    return URL.create("sqlite", database=str(path.absolute())).render_as_string()


class Store:
    """One database. Safe for use from several threads and processes at once."""

    def __init__(self, engine: Engine) -> None:
        """Use `open`."""
        self._engine = engine

    @classmethod
    def open(cls, url: str) -> Self:
        """`sqlite:////var/lib/tidegate/ledger.db` or `postgresql://user:password@host/name`; tables are made where
        there are none. Raises UrlInvalid, LedgerUnavailable, LedgerUnreadable."""
        store = cls(_engine(_checked(url)))
        try:
            store._prepare()
        except BaseException:
            store.close()
            raise
        return store

    @property
    def name(self) -> str:
        """The URL, its password hidden."""
        return self._engine.url.render_as_string(hide_password=True)

    @property
    def is_sqlite(self) -> bool:
        return self._engine.dialect.name == "sqlite"

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """One view of the data, whatever is written meanwhile. Raises LedgerUnavailable."""
        with self._in_our_words(), self._engine.connect() as connection, connection.begin():
            if not self.is_sqlite:
                connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            yield connection

    @contextmanager
    def write(self, *, is_durable: bool = True) -> Iterator[Connection]:
        """All of it or nothing. Raises LedgerUnavailable."""
        with self._in_our_words(), self._engine.connect() as connection:
            if self.is_sqlite:
                # Takes the write lock at once: a reader that turns writer could find its view outdated.
                connection = connection.execution_options(tidegate_writes=True)
                _set_synchronous(connection, "FULL" if is_durable else "NORMAL")
            with connection.begin():
                yield connection

    def bump(self, connection: Connection, counter: str) -> int:
        """The counter's next value, from 1. Who comes second waits here for the first one's commit."""
        make = sqlite.insert if self.is_sqlite else postgresql.insert
        table = schema.counters
        statement = (
            make(table)
            .values(name=counter, value=1)
            .on_conflict_do_update(index_elements=[table.c.name], set_={"value": table.c.value + 1})
            .returning(table.c.value)
        )
        value: int = connection.execute(statement).scalar_one()
        return value

    def counter(self, connection: Connection, counter: str) -> int:
        """0: never bumped."""
        table = schema.counters
        found = connection.execute(select(table.c.value).where(table.c.name == counter)).scalar()
        return int(found or 0)

    def close(self) -> None:
        self._engine.dispose()

    def _prepare(self) -> None:
        with self.write() as connection:
            if not self.is_sqlite:
                connection.execute(select(sqlalchemy.func.pg_advisory_xact_lock(_SCHEMA_LOCK)))
            present = set(inspect(connection).get_table_names()) & set(schema.metadata.tables)
            if not present:
                schema.metadata.create_all(connection)
                connection.execute(insert(schema.version).values(version=schema.VERSION))
            elif schema.version.name not in present:
                raise LedgerUnreadable(
                    f"{self.name} has {', '.join(sorted(present))} but no {schema.version.name}, so it is not a "
                    f"whole ledger; restore it from a backup or name another database. {_LEFT_ALONE}"
                )
            else:
                found = connection.execute(select(schema.version.c.version)).scalar()
                if found in schema.GROWS_FROM:
                    schema.metadata.create_all(connection)
                    connection.execute(update(schema.version).values(version=schema.VERSION))
                    found = schema.VERSION
                self._check_version(found)

    def _check_version(self, found: int | None) -> None:
        if found != schema.VERSION:
            newer = found is not None and found > schema.VERSION
            raise LedgerUnreadable(
                f"{self.name} is a ledger of version {found}, this tidegate needs version {schema.VERSION}; "
                f"{'use the newer tidegate that wrote it' if newer else 'move it away'}, or name another database. "
                f"{_LEFT_ALONE}"
            )

    @contextmanager
    def _in_our_words(self) -> Iterator[None]:
        try:
            yield
        except (DataError, IntegrityError):
            raise  # The values are at fault, not the database.
        except PoolTimeout as exc:
            raise LedgerUnavailable(f"{self.name}: all connections are in use, {exc}") from exc
        except (DBAPIError, sqlite3.Error) as exc:
            raw = exc.orig if isinstance(exc, DBAPIError) else exc
            # The statement's values stay out of the text: they may be prompts.
            text = f"{self.name}: {str(raw).strip().partition(chr(10))[0]}"
            if type(raw) is sqlite3.DatabaseError:
                raise LedgerUnreadable(f"{text}. {_LEFT_ALONE}") from exc
            raise LedgerUnavailable(text) from exc


_LEFT_ALONE = "Nothing in it was changed"


def _checked(text: str) -> URL:
    try:
        url = make_url(text)
    except ArgumentError as exc:
        raise UrlInvalid(
            "the ledger's URL can't be read; write sqlite:////folder/ledger.db or "
            "postgresql://user:password@host/name"
        ) from exc
    if url.drivername in ("sqlite", "sqlite+pysqlite"):
        if not url.database or url.database == ":memory:":
            raise UrlInvalid(f"{text}: a ledger in memory would be gone with the process; name a file")
        return url
    if url.drivername in ("postgresql", "postgres", "postgresql+psycopg"):
        return url.set(drivername="postgresql+psycopg")
    raise UrlInvalid(f"{url.drivername}: a ledger lives in sqlite or postgresql")


def _engine(url: URL) -> Engine:
    if url.get_backend_name() == "sqlite":
        _make_private(Path(str(url.database)))
        engine = sqlalchemy.create_engine(url, hide_parameters=True, connect_args={"timeout": BUSY_TIMEOUT_S})
        event.listen(engine, "connect", _on_sqlite_connect)
        event.listen(engine, "begin", _on_sqlite_begin)
        return engine
    return sqlalchemy.create_engine(
        url,
        hide_parameters=True,
        pool_pre_ping=True,
        pool_timeout=BUSY_TIMEOUT_S,
        connect_args={
            "connect_timeout": 5,
            "application_name": "tidegate",
            # A server that is gone without a word is noticed after 25 s, not after the kernel's two hours.
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "tcp_user_timeout": 15_000,
        },
    )


def _make_private(path: Path) -> None:
    """Prompts and tenants are nobody else's business; the files beside it get the same mode from SQLite."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as exc:
        raise LedgerUnavailable(f"{path} can't be opened: {exc.strerror}") from exc


def _on_sqlite_connect(connection: sqlite3.Connection, record: object) -> None:
    # Transactions begin where we say, not where the driver guesses.
    connection.isolation_level = None
    # The library of some builds of SQLite lacks it; PostgreSQL has it always.
    connection.create_function("floor", 1, math.floor, deterministic=True)
    (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
    if mode != "wal":
        raise sqlite3.OperationalError(f"its file system can't do WAL (journal_mode is {mode})")


def _on_sqlite_begin(connection: Connection) -> None:
    writes = connection.get_execution_options().get("tidegate_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _set_synchronous(connection: Connection, level: str) -> None:
    """Counts from the next transaction on, and must be said outside of one."""
    connection.connection.cursor().execute(f"PRAGMA synchronous={level}").close()
