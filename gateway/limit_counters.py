"""The counters under the limits: in this process, or in Redis for several gateways.

Windows are the `limits` library's: its storages are atomic, in memory and in Redis. What it lacks is a count of
what runs now: in Redis that is a set of leases which end by themselves when a gateway dies with them.
"""

from __future__ import annotations

import time
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from limits import RateLimitItem, RateLimitItemPerDay, RateLimitItemPerMinute
from limits.aio.storage import MemoryStorage, RedisStorage
from limits.aio.strategies import MovingWindowRateLimiter

LEASE_S = 90.0
"""A slot whose gateway does not renew it for so long is free again."""
REDIS_TIMEOUT_S = 0.5
POOL_WAIT_S = 5.0
"""A burst of callers queues for a connection; that is no sign that Redis is gone."""
MAX_REDIS_CONNECTIONS = 32
"""A gateway's; callers wait for one in turn."""

_TAKE_SLOT = """
local now = tonumber(ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[2]) then return 0 end
redis.call('ZADD', KEYS[1], now + tonumber(ARGV[3]), ARGV[4])
redis.call('PEXPIRE', KEYS[1], math.ceil(tonumber(ARGV[3]) * 1000))
return 1
"""


class CountersUnavailable(Exception):
    """Redis does not answer."""


@dataclass(frozen=True)
class Left:
    """How a window stands after a question: what is left of it, and when it begins anew."""

    is_taken: bool
    limit: int
    remaining: int
    reset_s: float


class Slots(Protocol):
    """How many run at a time."""

    async def take(self, key: str, limit: int) -> str | None:
        """A token to give back, or None when all are taken."""
        ...

    async def renew(self, key: str, token: str) -> None: ...

    async def give_back(self, key: str, token: str) -> None: ...


class MemorySlots:
    def __init__(self) -> None:
        self._taken: defaultdict[str, set[str]] = defaultdict(set)

    async def take(self, key: str, limit: int) -> str | None:
        taken = self._taken[key]
        if len(taken) >= limit:
            return None
        token = uuid.uuid4().hex
        taken.add(token)
        return token

    async def renew(self, key: str, token: str) -> None:
        pass

    async def give_back(self, key: str, token: str) -> None:
        self._taken[key].discard(token)
        if not self._taken[key]:
            del self._taken[key]


class RedisSlots:
    def __init__(self, redis: Any) -> None:
        self._redis = redis
        self._take = redis.register_script(_TAKE_SLOT)

    async def take(self, key: str, limit: int) -> str | None:
        token = uuid.uuid4().hex
        taken = await self._take(keys=[f"tidegate:slots:{key}"], args=[time.time(), limit, LEASE_S, token])
        return token if taken else None

    async def renew(self, key: str, token: str) -> None:
        await self._redis.zadd(f"tidegate:slots:{key}", {token: time.time() + LEASE_S}, xx=True)

    async def give_back(self, key: str, token: str) -> None:
        await self._redis.zrem(f"tidegate:slots:{key}", token)


class Counters:
    """Requests, tokens and slots by key. Every method raises CountersUnavailable when Redis is gone."""

    def __init__(
        self,
        storage: Any,
        slots: Slots,
        errors: tuple[type[Exception], ...] = (),
        close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._storage = storage
        self._requests = MovingWindowRateLimiter(storage)
        self._slots = slots
        self._errors = errors
        self._close = close

    @classmethod
    def in_memory(cls) -> Counters:
        return cls(MemoryStorage(), MemorySlots())

    @classmethod
    def in_redis(cls, url: str) -> Counters:
        """`redis://host:port/db`. Connects at the first question."""
        import redis.asyncio
        from redis.exceptions import RedisError

        pool = redis.asyncio.BlockingConnectionPool.from_url(
            url,
            max_connections=MAX_REDIS_CONNECTIONS,
            timeout=POOL_WAIT_S,
            socket_timeout=REDIS_TIMEOUT_S,
            socket_connect_timeout=REDIS_TIMEOUT_S,
        )
        options: dict[str, Any] = {"connection_pool": pool}  # its types say that options are plain values
        storage = RedisStorage(f"async+{url}", implementation="redispy", key_prefix="tidegate", **options)
        slots = RedisSlots(redis.asyncio.Redis(connection_pool=pool))
        return cls(storage, slots, (RedisError, OSError, TimeoutError), pool.disconnect)

    async def close(self) -> None:
        if self._close is not None:
            await self._close()

    async def take_request(self, key: str, per_min: int) -> Left:
        """One request of a moving minute; nothing is counted when none is left."""
        item = RateLimitItemPerMinute(per_min)
        with _translated(self._errors):
            is_taken = await self._requests.hit(item, "requests", key)
            reset_unix_s, remaining = await self._requests.get_window_stats(item, "requests", key)
        return Left(is_taken, per_min, max(0, remaining), max(0.0, reset_unix_s - time.time()))

    async def take_tokens(self, key: str, limit: int, amount: int, *, per_day: bool = False) -> Left:
        """`amount` of a window, or nothing of it when so many are not left.

        An amount above the whole limit is taken as the whole: such a request runs alone, not never.
        """
        item, amount = _token_item(limit, per_day), min(amount, limit)
        name = item.key_for("tokens", key)
        with _translated(self._errors):
            used = await self._storage.incr(name, item.get_expiry(), amount)
            is_taken = used <= limit
            if not is_taken:
                used = await self._storage.incr(name, item.get_expiry(), -amount)
            reset_unix_s = await self._storage.get_expiry(name)
        return Left(is_taken, limit, max(0, limit - used), max(0.0, reset_unix_s - time.time()))

    async def correct_tokens(self, key: str, limit: int, amount: int, *, per_day: bool = False) -> None:
        """Add what was used beyond what was taken, or give back what was not used (negative)."""
        item = _token_item(limit, per_day)
        name = item.key_for("tokens", key)
        with _translated(self._errors):
            if amount < 0:
                # Of a window that has ended meanwhile nothing is given back.
                amount = -min(-amount, await self._storage.get(name))
            if amount:
                await self._storage.incr(name, item.get_expiry(), amount)

    async def take_slot(self, key: str, limit: int) -> str | None:
        with _translated(self._errors):
            return await self._slots.take(key, limit)

    async def renew_slot(self, key: str, token: str) -> None:
        with _translated(self._errors):
            await self._slots.renew(key, token)

    async def give_back_slot(self, key: str, token: str) -> None:
        with _translated(self._errors):
            await self._slots.give_back(key, token)


class _translated:
    """Redis's errors, whichever they are, as one of ours."""

    def __init__(self, errors: tuple[type[Exception], ...]) -> None:
        self._errors = errors

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and isinstance(error, self._errors):
            raise CountersUnavailable(f"{type(error).__name__}: {error}") from error


def _token_item(limit: int, per_day: bool) -> RateLimitItem:
    return RateLimitItemPerDay(limit) if per_day else RateLimitItemPerMinute(limit)
