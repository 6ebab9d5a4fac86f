"""What a key has used, as the call log has it: per day and service, for its holder.

Calls of the last second may be missing: the log is written off the hot path.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec

from gateway.context_cache import Cache
from gateway.errors import InvalidRequest, NotServedHere, shown
from gateway.principal import NO_LIMITS, Principal
from ledger.call_query import CallFilter
from ledger.call_summary import Counts, count
from ledger.store import Store

DAY_S = 86400
MAX_DAYS = 31
DEFAULT_DAYS = 7
MAX_AT_ONCE = 2
"""Questions to the database; the others wait. A month of a busy key takes seconds."""
FRESH_S = 2.0
"""So long an answer is given again."""
MAX_CACHED = 1000


def parse_days(text: str | None) -> int:
    """Raises InvalidRequest."""
    if text is None:
        return DEFAULT_DAYS
    if not text.isascii() or not text.isdigit() or len(text) > 2 or not 1 <= int(text) <= MAX_DAYS:
        raise InvalidRequest(f"days = {shown(text)}, must be a whole number from 1 to {MAX_DAYS}", "days")
    return int(text)


class Usage:
    """One for the gateway. `store` None: there is no call log."""

    def __init__(self, store: Store | None, now: Callable[[], float] = time.time) -> None:
        self._store = store
        self._now = now
        self._turns = asyncio.Semaphore(MAX_AT_ONCE)
        self._known: Cache[tuple[float, bytes]] = Cache(MAX_CACHED)

    async def of(self, principal: Principal, days: int, services: Collection[str]) -> bytes:
        """Today (in UTC) and the days before it, as JSON. Calls of what is none of `services` stand together: their
        names are whatever a caller made up. Raises NotServedHere without a call log."""
        store = self._store
        if store is None:
            raise NotServedHere("usage is read from the call log, and this gateway has none (ledger_url)")
        key = f"{principal.key_id} {days}".encode()
        async with self._turns:
            now = self._now()
            known = self._known.get(key)
            if known is not None and 0 <= now - known[0] < FRESH_S:
                return known[1]
            today = now // DAY_S * DAY_S
            wanted = CallFilter(
                key_id=principal.key_id, since_unix_s=today - (days - 1) * DAY_S, is_shadow=False
            )
            rows = await asyncio.to_thread(count, store, wanted, ("day", "service"))
            answer = msgspec.json.encode(_answer(principal, rows, services, today, days))
            self._known.put(key, (now, answer))
            return answer


def _answer(
    principal: Principal, rows: Sequence[Counts], services: Collection[str], today: float, days: int
) -> dict[str, Any]:
    kept: dict[tuple[int, str | None], list[Counts]] = {}
    for row in rows:
        service = str(row.group["service"])
        key = (int(row.group["day"]), service if service in services else None)
        kept.setdefault(key, []).append(row)
    return {
        "object": "usage",
        "key": principal.key_id or None,
        "tenant": principal.tenant or None,
        "since_unix_s": int(today - (days - 1) * DAY_S),
        "today": _total([row for row in rows if row.group["day"] == today]),
        "total": _total(rows),
        "data": [
            {"day_unix_s": day, "model": service, **_total(group)} for (day, service), group in kept.items()
        ],
        "limits": {
            name: value
            for name in principal.limits.__struct_fields__
            if (value := getattr(principal.limits, name)) != getattr(NO_LIMITS, name)
        },
    }


def _total(rows: Sequence[Counts]) -> dict[str, int]:
    return {
        "requests": sum(row.num_calls for row in rows),
        "errors": sum(row.num_errors for row in rows),
        "refused": sum(row.num_refused for row in rows),
        "cancelled": sum(row.num_cancelled for row in rows),
        "prompt_tokens": sum(row.prompt_tokens for row in rows),
        "cached_tokens": sum(row.cached_tokens for row in rows),
        "output_tokens": sum(row.output_tokens for row in rows),
    }
