"""Figures of the moment of the scrape: endpoints behind the gateway, saturation, the call log's buffer."""

from __future__ import annotations

import time
from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.route_table import RouteTable
from gateway.upstreams import Upstreams
from ledger.writer import CallWriter


class GatewayState(Collector):
    """On the event loop, as the HTTP route that renders is."""

    def __init__(self, routes: RouteTable, writer: CallWriter | None) -> None:
        self.upstreams: Upstreams | None = None
        """Made later, inside the loop."""
        self._routes = routes
        self._writer = writer

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily(
            "tidegate_gateway_routes_revision",
            "Number of the routes in force; 0: every model has a route of its own name.",
            value=self._routes.revision,
        )
        saturated = GaugeMetricFamily(
            "tidegate_gateway_saturated",
            "1: the scaler says that this service can grow no more and its queue still does.",
            labels=["service"],
        )
        for service in self._routes.services:
            saturated.add_metric([service], float(self._routes.is_saturated(service)))
        yield saturated
        if self.upstreams is not None:
            yield from _of_upstreams(self.upstreams, time.monotonic())
        if self._writer is not None:
            yield from _of_writer(self._writer)


def _of_upstreams(upstreams: Upstreams, now: float) -> Iterable[Metric]:
    load = GaugeMetricFamily(
        "tidegate_gateway_upstream_load",
        "Tokens of the calls in flight at a Triton; a call of no known length counts as 1.",
        labels=["endpoint"],
    )
    ejected = GaugeMetricFamily(
        "tidegate_gateway_upstream_ejected",
        "1: it did not answer three times in a row, and gets no calls for a while.",
        labels=["endpoint"],
    )
    out = upstreams.ejected(now)
    for endpoint in upstreams.endpoints:
        load.add_metric([endpoint], upstreams.load_of(endpoint))
        ejected.add_metric([endpoint], float(endpoint in out))
    return load, ejected


def _of_writer(writer: CallWriter) -> Iterable[Metric]:
    stats = writer.stats()
    rows = CounterMetricFamily(
        "tidegate_gateway_call_log_rows",
        "Rows of the call log: written, dropped (the database was away for too long), refused by the database.",
        labels=["fate"],
    )
    for fate, count in (
        ("written", stats.num_written),
        ("dropped", stats.num_dropped),
        ("refused", stats.num_refused),
    ):
        rows.add_metric([fate], count)
    buffered = GaugeMetricFamily(
        "tidegate_gateway_call_log_buffered_rows",
        "Rows that wait for the database.",
        value=stats.num_buffered,
    )
    failing_s = max(0.0, time.time() - stats.failing_since_unix_s) if stats.failing_since_unix_s else 0.0
    failing = GaugeMetricFamily(
        "tidegate_gateway_call_log_failing_seconds",
        "Since when the database has taken nothing; 0: it does.",
        value=failing_s,
    )
    return rows, buffered, failing
