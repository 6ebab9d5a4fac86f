"""The console's own loop: asks the sources, counts calls, adds a step to the history every five seconds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any

from gateway.config import GatewayConfig
from gateway.console import document
from gateway.console.calls import WINDOW_S, CallBook
from gateway.console.history import STEP_S, History, Values
from gateway.console.sources import NodeSource, ScalerSource, TritonSource
from gateway.console.tally import Tally, percentile
from gateway.route_table import RouteTable
from ledger.revisions import RevisionStore

PERCENTILES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
WATCHED_S = 10.0
"""Somebody looks for so long after a question of the page."""


class Console:
    """One for the gateway: `running` around its life, `look` for each question of a page."""

    def __init__(
        self,
        config: GatewayConfig,
        models: Collection[str],
        routes: RouteTable,
        book: CallBook,
        revisions: RevisionStore | None,
    ) -> None:
        self.models = models
        self.revisions = revisions
        self._routes = routes
        self._book = book
        self._history = History()
        self._seen_s = -WATCHED_S
        self._scaler = ScalerSource(config.scaler_grpc)
        self._node = NodeSource(config.node_socket, self._is_watched)
        self._triton = TritonSource(config.triton_metrics)

    def look(self, since: int) -> dict[str, Any]:
        """The page's document; history from the step after `since` on."""
        self._seen_s = time.monotonic()
        now_unix_s = time.time()
        return {
            "now_unix_s": now_unix_s,
            "last_step": self._history.last,
            "step_s": STEP_S,
            "window_s": WINDOW_S,
            "sources": [source.state() for source in (self._scaler, self._node, self._triton)],
            "history": self._history.since(since),
            "decisions": [document.decision_row(one) for one in self._scaler.decisions],
            "models": document.model_rows(self._book, self._scaler.status, self._triton.pending),
            "pool": document.pool(self._node.memory, self._node.status, self._node.arena),
            "in_flight": {
                "total": self._book.num_in_flight,
                "longest": self._book.longest(time.monotonic()),
            },
            "routes": {
                "revision": self._routes.revision,
                "services": document.route_rows(self._routes.routes, self._routes.services, self._book),
            },
            "slowest": self._book.slowest(),
            "errors": self._book.errors(),
        }

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(work) for work in self._to_follow()]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _to_follow(self) -> Iterator[Coroutine[Any, Any, None]]:
        yield self._keep_steps()
        for source in (self._scaler, self._node, self._triton):
            if source.is_configured:
                yield source.follow()

    def _is_watched(self) -> bool:
        return time.monotonic() - self._seen_s < WATCHED_S

    async def _keep_steps(self) -> None:
        """Queues are looked at once a second, and a step keeps the most: a wave of a second is seen."""
        while True:
            queues: dict[str, float] = {}
            for _ in range(int(STEP_S)):
                await asyncio.sleep(1.0)
                for name, value in self._queues().items():
                    queues[name] = max(queues.get(name, 0.0), value)
            self._add_step(time.time(), queues)

    def _queues(self) -> dict[str, float]:
        found: dict[str, float] = {name: float(value) for name, value in (self._triton.pending or {}).items()}
        status = self._scaler.status
        for one in status.models if status is not None else ():
            if (value := document.reading(one.signals.queue)) is not None:
                found[one.model] = value
        return found

    def _add_step(self, now_unix_s: float, queues: dict[str, float]) -> None:
        begun, in_flight = self._book.end_step(), self._book.in_flight_of()
        ended, minute = self._book.of_last_steps(1), self._book.of_last_steps(int(60 / STEP_S))
        status = self._scaler.status
        known = {one.model: document.scaler_row(one) for one in status.models} if status is not None else {}
        models: dict[str, Values] = {}
        for name in sorted({*self.models, *begun, *in_flight, *minute, *known} - {""}):
            step, last = ended.get(name, Tally()), minute.get(name, Tally())
            scaler = known.get(name, {})
            models[name] = {
                "arrivals": begun.get(name, 0) / STEP_S,
                "failed": step.num_failed / STEP_S,
                "in_flight": float(in_flight.get(name, 0)),
                "queue": queues.get(name),
                "wanted": scaler.get("wanted"),
                "ready": scaler.get("ready"),
                "utilization": scaler.get("utilization"),
                **{f"ttft_{name}": percentile(last.ttfts, p) for name, p in PERCENTILES},
                **{f"latency_{name}": percentile(last.latencies, p) for name, p in PERCENTILES},
                "tokens": step.num_tokens / STEP_S,
            }
        memory = self._node.memory
        node: Values = {
            "kv_used_bytes": None if memory is None else float(memory.held_bytes),
            "kv_high_water_bytes": self._node.take_high_water_bytes(),
            "kv_total_bytes": None if memory is None else float(memory.total_bytes),
        }
        self._history.add(now_unix_s, models, node)
