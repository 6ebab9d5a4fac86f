"""What the gateway has beside its doors: keys, limits, routes, the call log, as the configuration says."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Coroutine, Iterator
from pathlib import Path
from typing import Any

from contracts.tracing.sending import SpanSender
from gateway.authentication import Authenticator, KeyRing
from gateway.batch_parts import MAX_TENANT_BYTES, BatchParts
from gateway.config import ConfigError, GatewayConfig
from gateway.console.calls import CallBook
from gateway.console.following import Console
from gateway.limit_counters import Counters
from gateway.limiter import Limiter
from gateway.metrics import GatewayMetrics
from gateway.metrics_state import GatewayState
from gateway.pipeline import Pipeline
from gateway.principal import NO_LIMITS
from gateway.rollback_watch import RollbackWatch, watch_rollouts
from gateway.route_table import KIND, RoutesFile, RouteTable
from gateway.routes import RoutesInvalid
from gateway.saturation import Saturation
from gateway.scaler_client import ScalerClient
from gateway.tracing import Tracer
from gateway.usage import Usage
from ledger.batches import BatchStore
from ledger.calls import CallRow
from ledger.errors import LedgerError
from ledger.files import FileStore
from ledger.keys import KeyStore
from ledger.revisions import RevisionStore
from ledger.store import Store
from ledger.writer import CallWriter


class Parts:
    """Made before the gateway listens, so that a wrong configuration is told at once; run inside its loop."""

    def __init__(self, config: GatewayConfig, models: Collection[str]) -> None:
        """Raises ConfigError."""
        self._config = config
        self._store = _open(config)
        self._ring = KeyRing(KeyStore(self._store)) if config.requires_keys and self._store else None
        if self._ring is not None:
            self._ring.refresh()
        self.usage = Usage(self._store)
        self._writer = CallWriter(self._store, keep_days=config.call_log_days) if self._store else None
        self._counters = Counters.in_redis(config.redis_url) if config.redis_url else Counters.in_memory()
        self._saturation = Saturation()
        self._watch = RollbackWatch()
        self._calls = CallBook()
        self.routes = RouteTable(models, is_saturated=self._saturation.is_saturated)
        self.state = GatewayState(self.routes, self._writer)
        self.metrics = GatewayMetrics(self.state)
        self._revisions = RevisionStore(self._store) if self._store else None
        self.batches = (
            BatchParts(FileStore(self._store, MAX_TENANT_BYTES), BatchStore(self._store))
            if self._store
            else None
        )
        self._file = self._first_routes(models)
        limiter = Limiter(
            self._counters,
            lambda service: config.service_limits.get(service, NO_LIMITS),
            when_gone=config.limits_when_gone,
        )
        self.pipeline = Pipeline(
            Authenticator(self._ring),
            limiter,
            self.routes,
            self._log,
            keeps_prompts=config.keeps_prompts,
            tracer=_tracer(config),
            watcher=self._calls,
        )
        self.console = Console(config, models, self.routes, self._calls, self._revisions)

    def _first_routes(self, models: Collection[str]) -> RoutesFile | None:
        """The latest revision is in force before the first call. Raises ConfigError when it can't be."""
        if self._revisions is None:
            return None
        path = self._config.routes_path
        file = RoutesFile(Path(path), models, self._revisions) if path else None
        try:
            if file is not None:
                file.look()
            if (latest := self._revisions.latest(KIND)) is not None:
                self.routes.put(latest.text, latest.number)
        except RoutesInvalid as exc:
            problems = [f"routes: {problem}" for problem in exc.problems]
            if any("no such model is served" in problem for problem in problems):
                url = self._store.name if self._store else ""
                problems.append(
                    "serve those models too; versions that have no share are dropped by "
                    f"`tidegate rollout finish SERVICE --ledger-url {url}`"
                )
            raise ConfigError("\n".join(problems)) from exc
        except (OSError, UnicodeDecodeError, LedgerError) as exc:
            raise ConfigError(f"routes: {exc}") from exc
        return file

    def _log(self, row: CallRow) -> None:
        self._watch.note(row)
        self._calls.note(row)
        self.metrics.note(row)
        if self._writer is not None:
            self._writer.put(row)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Follows what operators and the scaler say; at the end writes what is still to be written."""
        scaler = ScalerClient(self._config.scaler_grpc) if self._config.scaler_grpc else None
        following = [asyncio.create_task(work) for work in self._to_follow(scaler)]
        try:
            async with self.console.running():
                yield
        finally:
            for task in following:
                task.cancel()
            await asyncio.gather(*following, return_exceptions=True)
            if scaler is not None:
                await scaler.close()
            await self._counters.close()
            await asyncio.to_thread(self._close_store)

    def _to_follow(self, scaler: ScalerClient | None) -> Iterator[Coroutine[Any, Any, None]]:
        if self._ring is not None:
            yield self._ring.follow()
        if self._revisions is not None:
            yield self.routes.follow(self._revisions)
            yield watch_rollouts(self.routes, self._watch, self._revisions)
        if self._file is not None:
            yield self._file.follow()
        if scaler is not None:
            yield self._saturation.follow(scaler)

    def _close_store(self) -> None:
        if self._writer is not None:
            self._writer.close()
        if self._store is not None:
            self._store.close()


def _tracer(config: GatewayConfig) -> Tracer:
    sender = SpanSender(config.spans_socket) if config.spans_socket else None
    return Tracer(sender, config.trace_ratio, config.trace_slow_s)


def _open(config: GatewayConfig) -> Store | None:
    if not config.ledger_url:
        return None
    try:
        return Store.open(config.ledger_url)
    except LedgerError as exc:
        raise ConfigError(f"ledger_url: {exc}") from exc
