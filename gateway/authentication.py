"""Recognises callers by their keys. Asks no database while a request waits: the ring of keys lies in memory.

Keys are 256 random bits and compared by hash in constant time, unknown ids included, so that how long a refusal
takes says nothing about why.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from gateway.errors import Forbidden, KeyInvalid, KeyMissing, shown
from gateway.principal import ANONYMOUS, NO_LIMITS, Limits, Principal, Role
from ledger.keys import NOBODY, KeyRow, parse_key

logger = logging.getLogger("gateway.authentication")

POLL_S = 0.3
"""A key that is revoked is refused after at most so long, everywhere."""
KEY_HEADER = "x-api-key"
_HOW = "send it as `Authorization: Bearer tg_...` or `x-api-key: tg_...`; `tidegate keys create` makes one"


class Keys(Protocol):
    """What is asked of `ledger.keys.KeyStore`."""

    def changed(self) -> int: ...

    def snapshot(self) -> tuple[int, Sequence[KeyRow]]: ...


class KeyRing:
    """The keys as they were a moment ago."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._rows: dict[str, tuple[KeyRow, Limits]] = {}
        self._version = -1

    def find(self, key_id: str) -> tuple[KeyRow, Limits] | None:
        return self._rows.get(key_id)

    def refresh(self) -> None:
        """Blocks: read them again if one was made, changed or revoked."""
        if self._keys.changed() != self._version:
            version, rows = self._keys.snapshot()
            self._rows = {row.key_id: (row, _limits(row)) for row in rows}
            self._version = version

    async def follow(self) -> None:
        """Until cancelled. While the database is down the last known keys hold."""
        is_down = False
        while True:
            try:
                await asyncio.to_thread(self.refresh)
                is_down = False
            except Exception as exc:  # whichever database it is
                if not is_down:
                    logger.warning("keys can't be read, the last known ones hold: %s", type(exc).__name__)
                is_down = True
            await asyncio.sleep(POLL_S)


class Authenticator:
    """`ring` None: keys are off, and everybody may infer."""

    def __init__(self, ring: KeyRing | None, now: Callable[[], float] = time.time) -> None:
        self._ring = ring
        self._now = now

    @property
    def is_on(self) -> bool:
        return self._ring is not None

    def authenticate(self, headers: Mapping[str, str]) -> Principal:
        """`headers`: lower-case names. Raises KeyMissing and KeyInvalid."""
        if self._ring is None:
            return ANONYMOUS
        text = _key_text(headers)
        if not text:
            raise KeyMissing(f"an API key is needed: {_HOW}")
        key_id, secret = parse_key(text) or ("", text)
        row, limits = self._ring.find(key_id) or (NOBODY, NO_LIMITS)
        now = self._now()
        if not row.has_secret(secret, now) or not row.is_usable(now):
            raise KeyInvalid("the API key is not known, or not good any more")
        return Principal(row.key_id, row.tenant, row.roles, row.services, limits)

    def principal_of(self, key_id: str, tenant: str) -> Principal:
        """Whose work goes on without a request of theirs. Raises KeyInvalid when the key is not good any more."""
        if self._ring is None:
            return ANONYMOUS
        found = self._ring.find(key_id)
        if found is None or found[0].tenant != tenant or not found[0].is_usable(self._now()):
            raise KeyInvalid("the API key is not known, or not good any more")
        row, limits = found
        return Principal(row.key_id, row.tenant, row.roles, row.services, limits)


def require(principal: Principal, role: Role = "infer", service: str | None = None) -> None:
    """Raises Forbidden."""
    if not principal.may(role):
        raise Forbidden(f"this needs the role {role!r}; key {principal.key_id or '(none)'} has not got it")
    if service is not None and not principal.may_use(service):
        raise Forbidden(f"key {principal.key_id} may not use {shown(service)}", "model")


def _key_text(headers: Mapping[str, str]) -> str:
    # perf_analyzer sends what follows the colon, space included: HTTP drops it, gRPC hands it on.
    scheme, _, rest = headers.get("authorization", "").strip().partition(" ")
    if scheme.lower() == "bearer" and rest.strip():
        return rest.strip()
    return headers.get(KEY_HEADER, "").strip()


def _limits(row: KeyRow) -> Limits:
    """A key whose limits this gateway can't read is held to the tightest: it may do one request a minute."""
    try:
        # JSON has one kind of number, and 50 may come back as 50.0.
        return msgspec.convert({k: int(v) if v == int(v) else v for k, v in row.limits.items()}, Limits)
    except (msgspec.ValidationError, ValueError) as exc:
        logger.error("key %s: its limits can't be read (%s); it may do one request a minute", row.key_id, exc)
        return Limits(requests_per_min=1)
