"""API keys: `tg_ID_SECRET`. The secret is shown once, when it is made; the database has its hash.

The hash is a plain SHA-256, not bcrypt or Argon2. Those slow down guessing at words that people choose. Our secret
is 256 random bits: nobody guesses it at any speed, and a hash of 100 ms a request would be a way to overload us.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, insert, select, update

from ledger import schema
from ledger.errors import KeyFieldInvalid, KeyUnknown, KeyUnusable
from ledger.store import Store

ROLES = frozenset({"infer", "admin", "metrics"})
DEFAULT_OVERLAP_S = 24 * 3600.0
_KEY = re.compile(r"tg_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._@/-]{0,99}")
_CHANGES = "keys"


@dataclass(frozen=True)
class KeyRow:
    key_id: str
    """Public: it is in logs and on the command line."""
    tenant: str
    name: str
    roles: frozenset[str]
    services: frozenset[str] | None
    """None: all."""
    limits: Mapping[str, float]
    secret_hash: str = field(repr=False)
    previous_hash: str | None = field(repr=False)
    """Of the secret before the last rotation, good until `previous_until_unix_s`."""
    previous_until_unix_s: float | None
    created_unix_s: float
    created_by: str
    expires_unix_s: float | None
    rotated_unix_s: float | None
    revoked_unix_s: float | None
    revoked_by: str

    def is_usable(self, now: float) -> bool:
        """Neither revoked nor expired."""
        return self.revoked_unix_s is None and (self.expires_unix_s is None or now < self.expires_unix_s)

    def has_secret(self, secret: str, now: float) -> bool:
        """In constant time, and both hashes are compared always: how long it takes tells nothing."""
        given = hash_secret(secret)
        is_current = hmac.compare_digest(given, self.secret_hash)
        is_previous = hmac.compare_digest(given, self.previous_hash or _NO_HASH)
        in_overlap = self.previous_until_unix_s is not None and now < self.previous_until_unix_s
        return is_current or (is_previous and in_overlap)


def hash_secret(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


_NO_HASH = "0" * 64
NOBODY = KeyRow(
    key_id="",
    tenant="",
    name="",
    roles=frozenset(),
    services=frozenset(),
    limits={},
    secret_hash=_NO_HASH,
    previous_hash=None,
    previous_until_unix_s=None,
    created_unix_s=0.0,
    created_by="",
    expires_unix_s=None,
    rotated_unix_s=None,
    revoked_unix_s=0.0,
    revoked_by="",
)
"""Stands in for a key that is not known, so that its refusal takes the same steps. Revoked since ever."""


def parse_key(text: str) -> tuple[str, str] | None:
    """'tg_ID_SECRET' -> (ID, SECRET); None: it has not the form of a key, so the database need not be asked."""
    match = _KEY.fullmatch(text)
    return None if match is None else (match[1], match[2])


def without_secrets(text: str) -> str:
    """For logs: a caller may have put the key where a model's name or a path belongs."""
    return _KEY.sub(r"tg_\1_(secret)", text) if "tg_" in text else text


class KeyStore:
    """Every change is on the disk when its call returns, and moves `changed`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def create(
        self,
        *,
        tenant: str,
        name: str,
        roles: Iterable[str] = ("infer",),
        services: Iterable[str] | None = None,
        limits: Mapping[str, float] | None = None,
        expires_unix_s: float | None = None,
        who: str = "",
        now: float | None = None,
    ) -> tuple[KeyRow, str]:
        """The key and its text `tg_…`, which nobody can be shown again. Raises KeyFieldInvalid."""
        now = _now(now)
        key_id, secret = secrets.token_hex(8), secrets.token_urlsafe(32)
        row = KeyRow(
            key_id=key_id,
            tenant=_named("tenant", tenant),
            name=_named("name", name),
            roles=_checked_roles(roles),
            services=None if services is None else frozenset(services),
            limits=dict(limits or {}),
            secret_hash=hash_secret(secret),
            previous_hash=None,
            previous_until_unix_s=None,
            created_unix_s=now,
            created_by=who,
            expires_unix_s=expires_unix_s,
            rotated_unix_s=None,
            revoked_unix_s=None,
            revoked_by="",
        )
        if expires_unix_s is not None and expires_unix_s <= now:
            raise KeyFieldInvalid("the key would have expired before it is made; choose a later time")
        if row.services is not None and not row.services:
            raise KeyFieldInvalid(
                "services is empty, so the key could use nothing; name some, or none for all"
            )
        with self._store.write() as connection:
            connection.execute(insert(schema.keys).values(_columns(row)))
            self._store.bump(connection, _CHANGES)
        return row, f"tg_{key_id}_{secret}"

    def rotate(
        self, key_id: str, *, overlap_s: float = DEFAULT_OVERLAP_S, now: float | None = None
    ) -> tuple[KeyRow, str]:
        """A new secret for the same key. The one before stays good for `overlap_s`, so clients change over without
        a failed request; one still older dies now. Raises KeyUnknown, KeyUnusable."""
        now = _now(now)
        secret = secrets.token_urlsafe(32)
        with self._store.write() as connection:
            old = _need(connection, key_id, to_change=True)
            if not old.is_usable(now):
                gone = "revoked" if old.revoked_unix_s is not None else "expired"
                raise KeyUnusable(f"{key_id} is {gone}, a new secret would open nothing; create a new key")
            row = self._change(
                connection,
                key_id,
                secret_hash=hash_secret(secret),
                previous_hash=old.secret_hash,
                previous_until_unix_s=now + max(0.0, overlap_s),
                rotated_unix_s=now,
            )
        return row, f"tg_{key_id}_{secret}"

    def revoke(self, key_id: str, *, who: str = "", now: float | None = None) -> KeyRow:
        """For ever; again changes nothing. Raises KeyUnknown."""
        with self._store.write() as connection:
            row = _need(connection, key_id, to_change=True)
            if row.revoked_unix_s is not None:
                return row
            return self._change(connection, key_id, revoked_unix_s=_now(now), revoked_by=who)

    def find(self, key_id: str) -> KeyRow | None:
        with self._store.read() as connection:
            return _find(connection, key_id)

    def list(self, *, tenant: str | None = None) -> tuple[KeyRow, ...]:
        """Oldest first, revoked and expired ones too."""
        query = select(schema.keys).order_by(schema.keys.c.created_unix_s, schema.keys.c.key_id)
        if tenant is not None:
            query = query.where(schema.keys.c.tenant == tenant)
        with self._store.read() as connection:
            return tuple(_key(row) for row in connection.execute(query))

    def changed(self) -> int:
        """Another number after every change. One look at one row: made to be asked several times a second."""
        with self._store.read() as connection:
            return self._store.counter(connection, _CHANGES)

    def snapshot(self) -> tuple[int, tuple[KeyRow, ...]]:
        """`changed` and all keys, of one moment: what a cache is filled with."""
        with self._store.read() as connection:
            rows = tuple(_key(row) for row in connection.execute(select(schema.keys)))
            return self._store.counter(connection, _CHANGES), rows

    def _change(self, connection: Connection, key_id: str, **values: Any) -> KeyRow:
        connection.execute(update(schema.keys).where(schema.keys.c.key_id == key_id).values(values))
        self._store.bump(connection, _CHANGES)
        return _need(connection, key_id)


def _need(connection: Connection, key_id: str, *, to_change: bool = False) -> KeyRow:
    """`to_change`: two rotations at once must follow one another, or the first one's new secret would be lost."""
    row = _find(connection, key_id, to_change=to_change)
    if row is None:
        raise KeyUnknown(f"no key has the id {key_id!r}; `tidegate keys list` shows them")
    return row


def _find(connection: Connection, key_id: str, *, to_change: bool = False) -> KeyRow | None:
    query = select(schema.keys).where(schema.keys.c.key_id == key_id)
    row = connection.execute(query.with_for_update() if to_change else query).one_or_none()
    return None if row is None else _key(row)


def _key(row: Row[Any]) -> KeyRow:
    values = dict(row._mapping)
    values["roles"] = frozenset(values["roles"].split())
    services = values["services"]
    values["services"] = (
        None if services is None else frozenset(msgspec.json.decode(services, type=list[str]))
    )
    values["limits"] = msgspec.json.decode(values["limits"], type=dict[str, float])
    return KeyRow(**values)


def _columns(row: KeyRow) -> dict[str, Any]:
    values = {column.name: getattr(row, column.name) for column in schema.keys.columns}
    values["roles"] = " ".join(sorted(row.roles))
    values["services"] = None if row.services is None else msgspec.json.encode(sorted(row.services)).decode()
    values["limits"] = msgspec.json.encode(dict(row.limits)).decode()
    return values


def _checked_roles(roles: Iterable[str]) -> frozenset[str]:
    found = frozenset(roles)
    if not found or found - ROLES:
        raise KeyFieldInvalid(f"roles = {sorted(found)}, must be one or more of {', '.join(sorted(ROLES))}")
    return found


def _named(field: str, value: str) -> str:
    if not _NAME.fullmatch(value):
        raise KeyFieldInvalid(
            f"{field} = {value!r}: letters, digits, space, and . _ @ / - only, at most 100, starting with a letter "
            "or digit"
        )
    return value


def _now(now: float | None) -> float:
    return time.time() if now is None else now
