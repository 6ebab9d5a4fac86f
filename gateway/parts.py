"""What the gateway has beside its routes: keys, limits, the call log, each where the configuration says so."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection

from gateway.authentication import Authenticator, KeyRing
from gateway.config import ConfigError, GatewayConfig
from gateway.limit_counters import Counters
from gateway.limiter import Limiter
from gateway.pipeline import Pipeline, PlainRoutes
from gateway.principal import NO_LIMITS
from ledger.errors import LedgerError
from ledger.keys import KeyStore
from ledger.store import Store
from ledger.writer import CallWriter


class Parts:
    """Made before the gateway listens, so that a wrong configuration is told at once; run inside its loop."""

    def __init__(self, config: GatewayConfig, services: Collection[str]) -> None:
        """Raises ConfigError."""
        self._store = _open(config)
        self._ring = KeyRing(KeyStore(self._store)) if config.requires_keys and self._store else None
        if self._ring is not None:
            self._ring.refresh()
        self._writer = CallWriter(self._store, keep_days=config.call_log_days) if self._store else None
        self._counters = Counters.in_redis(config.redis_url) if config.redis_url else Counters.in_memory()
        limiter = Limiter(
            self._counters,
            lambda service: config.service_limits.get(service, NO_LIMITS),
            when_gone=config.limits_when_gone,
        )
        self.pipeline = Pipeline(
            Authenticator(self._ring),
            limiter,
            PlainRoutes(services),
            self._writer.put if self._writer else lambda row: None,
            keeps_prompts=config.keeps_prompts,
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Follows what operators change; at the end writes what is still to be written."""
        following = [asyncio.create_task(self._ring.follow())] if self._ring else []
        try:
            yield
        finally:
            for task in following:
                task.cancel()
            await asyncio.gather(*following, return_exceptions=True)
            await self._counters.close()
            await asyncio.to_thread(self._close_store)

    def _close_store(self) -> None:
        if self._writer is not None:
            self._writer.close()
        if self._store is not None:
            self._store.close()


def _open(config: GatewayConfig) -> Store | None:
    if not config.ledger_url:
        return None
    try:
        return Store.open(config.ledger_url)
    except LedgerError as exc:
        raise ConfigError(f"ledger_url: {exc}") from exc
