"""The gateway's Prometheus figures: counted from the rows of the call log, so that both say the same."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.registry import Collector

from contracts.buckets import DURATION_BUCKETS_S, TPOT_BUCKETS_S, TTFT_BUCKETS_S
from contracts.metrics import OTHER, Few
from ledger.calls import CallRow

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAX_TENANTS = 200
"""Labelled by name; the rest count together as "other". The call log knows each."""
MAX_NAMES = 200
"""Versions and error codes, likewise: they come from routes and from our own errors."""


class GatewayMetrics:
    """`note` each row; `render` when asked. A request that was tried again elsewhere has a row, and counts, per
    attempt; shadows count apart."""

    def __init__(self, *collectors: Collector) -> None:
        self._tenants, self._versions, self._codes = Few(MAX_TENANTS), Few(MAX_NAMES), Few(MAX_NAMES)
        self._children: dict[tuple[Any, ...], Any] = {}
        """As many as there are lines in `render`: every label is bounded."""
        self._registry = registry = CollectorRegistry(auto_describe=False)
        for collector in collectors:
            registry.register(collector)
        self._attempts = Counter(
            "tidegate_gateway_attempts",
            "Attempts to answer a request, by how they ended: ok, error, cancelled, refused.",
            ("service", "version", "door", "outcome"),
            registry=registry,
        )
        self._errors = Counter(
            "tidegate_gateway_errors",
            "Attempts that were refused or failed, by the error's code.",
            ("service", "code"),
            registry=registry,
        )
        self._retries = Counter(
            "tidegate_gateway_retries",
            "Attempts after the first of a request.",
            ("service",),
            registry=registry,
        )
        self._shadows = Counter(
            "tidegate_gateway_shadows",
            "Copies that answered nobody.",
            ("service", "outcome"),
            registry=registry,
        )
        self._tokens = Counter(
            "tidegate_gateway_tokens",
            "Tokens of answered requests: prompt (cached ones included), cached, output.",
            ("service", "kind"),
            registry=registry,
        )
        self._tenant_tokens = Counter(
            "tidegate_gateway_tenant_tokens",
            "Prompt and output tokens that a tenant was charged.",
            ("tenant",),
            registry=registry,
        )
        self._duration = Histogram(
            "tidegate_gateway_request_duration_seconds",
            "From a request's arrival to its answer's end, of those answered.",
            ("service", "version"),
            buckets=DURATION_BUCKETS_S,
            registry=registry,
        )
        self._ttft = Histogram(
            "tidegate_gateway_time_to_first_token_seconds",
            "From a request's arrival to its first text, of streams that had one.",
            ("service", "version"),
            buckets=TTFT_BUCKETS_S,
            registry=registry,
        )
        self._tpot = Histogram(
            "tidegate_gateway_time_per_output_token_seconds",
            "(end - first text) / (output tokens - 1), of answered streams of two tokens and more.",
            ("service", "version"),
            buckets=TPOT_BUCKETS_S,
            registry=registry,
        )

    def _of(self, metric: Any, *labels: str) -> Any:
        """As `metric.labels`, which looks each label up anew under a lock: 2 µs, of which a call has five."""
        key = (metric, *labels)
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = metric.labels(*labels)
        return child

    def note(self, row: CallRow) -> None:
        service = row.service if row.model else OTHER  # not routed: any caller can make up a name
        if row.is_shadow:
            self._of(self._shadows, service, row.outcome).inc()
            return
        version = self._versions.of(row.version)
        self._of(self._attempts, service, version, row.door, row.outcome).inc()
        if row.attempt > 1:
            self._of(self._retries, service).inc()
        if row.outcome in ("error", "refused"):
            self._of(self._errors, service, self._codes.of(row.error_code)).inc()
        self._note_tokens(row, service)
        if row.ttft_s is not None:
            self._of(self._ttft, service, version).observe(row.ttft_s)
        if row.outcome != "ok":
            return
        self._of(self._duration, service, version).observe(row.duration_s)
        if row.is_stream and row.ttft_s is not None and (row.output_tokens or 0) > 1:
            per_token_s = (row.duration_s - row.ttft_s) / ((row.output_tokens or 0) - 1)
            self._of(self._tpot, service, version).observe(per_token_s)

    def _note_tokens(self, row: CallRow, service: str) -> None:
        if row.outcome == "refused":
            return
        for kind, count in (
            ("prompt", row.prompt_tokens),
            ("cached", row.cached_tokens),
            ("output", row.output_tokens),
        ):
            if count:
                self._of(self._tokens, service, kind).inc(count)
        if charged := (row.prompt_tokens or 0) + (row.output_tokens or 0):
            self._of(self._tenant_tokens, self._tenants.of(row.tenant)).inc(charged)

    def render(self) -> bytes:
        """Prometheus' text format."""
        return generate_latest(self._registry)
