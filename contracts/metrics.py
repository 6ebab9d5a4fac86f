"""What tidegate's Prometheus endpoints share: bounded labels, and a server for processes without HTTP of their own.

Each process counts for itself and Prometheus adds up: no files that the dead leave behind (client_python#275).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

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
