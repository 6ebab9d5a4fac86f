"""Spans on to the user's collector, through the SDK's batches and its OTLP/HTTP exporter.

The SDK's own bounds hold: 2,048 spans wait, the oldest are dropped. Its shutdown may ignore its time-out
(opentelemetry-python#4555, #4568), so it is bounded here.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event as SdkEvent
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link as SdkLink
from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags
from opentelemetry.trace import SpanKind as SdkSpanKind

from contracts.tracing.names import Dialect, in_dialect
from contracts.tracing.span import Span, SpanKind, SpanStatus

ENDPOINT_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
TRACES_PATH = "/v1/traces"
EXPORT_TIMEOUT_S = 10.0
"""For one batch, further tries included: OTLP's default. Phoenix, just started, took longer than 5 s."""
LAST_WORDS_S = 2.0
_KINDS = {
    SpanKind.INTERNAL: SdkSpanKind.INTERNAL,
    SpanKind.SERVER: SdkSpanKind.SERVER,
    SpanKind.CLIENT: SdkSpanKind.CLIENT,
}
_STATUSES = {
    SpanStatus.UNSET: StatusCode.UNSET,
    SpanStatus.OK: StatusCode.OK,
    SpanStatus.ERROR: StatusCode.ERROR,
}
_SCOPE = InstrumentationScope("tidegate")


def exporter_for(endpoint: str, environ: Mapping[str, str]) -> SpanExporter | None:
    """None: nobody names a collector. Headers, certificates and compression are the SDK's own variables."""
    if endpoint:
        base = endpoint.rstrip("/")
        url = base if base.endswith(TRACES_PATH) else base + TRACES_PATH
        return OTLPSpanExporter(endpoint=url, timeout=EXPORT_TIMEOUT_S)
    if any(environ.get(name) for name in ENDPOINT_VARIABLES):
        return OTLPSpanExporter(timeout=EXPORT_TIMEOUT_S)
    return None


class Forwarder:
    """Never blocks whoever passes spans on. Close it."""

    def __init__(self, exporter: SpanExporter, dialect: Dialect) -> None:
        self._dialect = dialect
        self._processor = BatchSpanProcessor(exporter, schedule_delay_millis=500)
        self._resources: dict[str, Resource] = {}

    def forward(self, spans: Sequence[Span]) -> None:
        for span in spans:
            self._processor.on_end(readable(span, self._resource(span.service), self._dialect))

    def close(self, timeout_s: float = LAST_WORDS_S) -> bool:
        """Whether what was waiting is out, as far as the SDK tells; a collector that is down keeps nobody."""
        last = threading.Thread(target=self._processor.shutdown, name="last-spans", daemon=True)
        last.start()
        last.join(timeout_s)
        return not last.is_alive()

    def _resource(self, service: str) -> Resource:
        if service not in self._resources:
            # OTEL_RESOURCE_ATTRIBUTES come in with `create`, the service's name over them.
            self._resources[service] = Resource.create(
                {"service.name": service, "service.namespace": "tidegate", "host.name": os.uname().nodename}
            )
        return self._resources[service]


def readable(span: Span, resource: Resource, dialect: Dialect) -> ReadableSpan:
    """A span of ours as one of the SDK's."""
    trace_id = int(span.trace_id, 16)
    return ReadableSpan(
        name=span.name,
        context=_context(trace_id, span.span_id),
        parent=_context(trace_id, span.parent_id) if span.parent_id else None,
        resource=resource,
        attributes=in_dialect(span.attributes, dialect),
        events=[SdkEvent(event.name, dict(event.attributes), event.at_unix_ns) for event in span.events],
        links=[SdkLink(_context(int(link.trace_id, 16), link.span_id)) for link in span.links],
        kind=_KINDS[span.kind],
        instrumentation_scope=_SCOPE,
        status=Status(
            _STATUSES[span.status], span.status_text or None if span.status is SpanStatus.ERROR else None
        ),
        start_time=span.start_unix_ns,
        end_time=span.end_unix_ns,
    )


def _context(trace_id: int, span_id: str) -> SpanContext:
    return SpanContext(
        trace_id, int(span_id, 16), is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED)
    )
