"""What all of tidegate's Prometheus endpoints share: buckets of a seconds scale, and a server for processes without
HTTP of their own.

Each process counts for itself and Prometheus adds up: no files that the dead leave behind (client_python#275).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

TTFT_BUCKETS_S = (0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40)
"""OpenTelemetry's advice for gen_ai.server.time_to_first_token, from 5 ms and up to what a queue on a CPU costs."""
TPOT_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5)
"""As advised for gen_ai.server.time_per_output_token."""
DURATION_BUCKETS_S = (
    0.005,
    0.01,
    0.02,
    0.04,
    0.08,
    0.16,
    0.32,
    0.64,
    1.28,
    2.56,
    5.12,
    10.24,
    20.48,
    40.96,
    81.92,
)
START_BUCKETS_S = (0.1, 0.2, 0.3, 0.5, 0.75, 1, 2, 5, 10, 30, 60, 120, 300, 600)

OTHER = "other"
COLLECT_TIMEOUT_S = 2.0


class Few:
    """At most so many values of a label: a caller who makes up names must not fill the server's memory."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[str] = set()

    def of(self, value: str) -> str:
        if value in self._known:
            return value
        if len(self._known) >= self._most:
            return OTHER
        self._known.add(value)
        return value


class OnLoop(Collector):
    """Collects on the event loop, whose state no other thread may read. A loop that does not answer in time gives
    `tidegate_collect_failed 1` and nothing else: figures that are old look like figures that are well."""

    def __init__(self, loop: asyncio.AbstractEventLoop, collect: Callable[[], Iterable[Metric]]) -> None:
        self._loop = loop
        self._collect = collect

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        async def ask() -> list[Metric]:
            return list(self._collect())

        asking = asyncio.run_coroutine_threadsafe(ask(), self._loop)
        try:
            found = asking.result(COLLECT_TIMEOUT_S)
        except TimeoutError:
            asking.cancel()
            found = None
        yield GaugeMetricFamily(
            "tidegate_collect_failed",
            "1: this process was too busy to say its figures.",
            value=float(found is None),
        )
        yield from found or ()


class MetricsServer:
    """`/metrics` on a thread of its own. Raises OSError when the port is not to be had."""

    def __init__(self, host: str, port: int, *collectors: Collector) -> None:
        registry = CollectorRegistry(auto_describe=False)
        for collector in collectors:
            registry.register(collector)
        self._server: WSGIServer
        self._server, self._thread = start_http_server(port, host, registry)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
