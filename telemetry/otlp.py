"""OTLP over HTTP as Triton and SDKs send it, JSON or protobuf, to our spans (opentelemetry-proto, trace v1)."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from contracts.tracing.span import Event, Link, Span, SpanKind, SpanStatus, Value

JSON_TYPE, PROTOBUF_TYPE = "application/json", "application/x-protobuf"
_ID_KEYS = frozenset({"traceId", "spanId", "parentSpanId", "trace_id", "span_id", "parent_span_id"})
_UNKNOWN = "unknown"


class OtlpInvalid(ValueError):
    """The body is no ExportTraceServiceRequest."""


def read_otlp(body: bytes, content_type: str) -> list[Span]:
    """Raises OtlpInvalid."""
    request = ExportTraceServiceRequest()
    try:
        if content_type == JSON_TYPE:
            json_format.ParseDict(_with_bytes(json.loads(body)), request, ignore_unknown_fields=True)
        else:
            request.ParseFromString(body)
    except (DecodeError, json_format.ParseError, ValueError, RecursionError) as exc:
        raise OtlpInvalid(f"no ExportTraceServiceRequest: {exc}") from exc
    return list(_spans(request))


def _with_bytes(value: Any) -> Any:
    """OTLP's JSON has ids in hexadecimal, where protobuf's JSON has bytes in base64. Raises ValueError."""
    if isinstance(value, list):
        return [_with_bytes(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: base64.b64encode(binascii.unhexlify(item)).decode()
        if key in _ID_KEYS and isinstance(item, str)
        else _with_bytes(item)
        for key, item in value.items()
    }


def _spans(request: Any) -> Iterable[Span]:
    for resource_spans in request.resource_spans:
        resource = _attributes(resource_spans.resource.attributes)
        service = str(resource.get("service.name", _UNKNOWN))
        for scope_spans in resource_spans.scope_spans:
            for span in scope_spans.spans:
                yield _span(span, service)


def _span(span: Any, service: str) -> Span:
    return Span(
        service=service,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        name=span.name,
        kind=SpanKind(span.kind) if span.kind in list(SpanKind) else SpanKind.INTERNAL,
        start_unix_ns=span.start_time_unix_nano,
        end_unix_ns=span.end_time_unix_nano,
        attributes=_attributes(span.attributes),
        events=[
            Event(event.time_unix_nano, event.name, _attributes(event.attributes)) for event in span.events
        ],
        links=[Link(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
        status=SpanStatus(span.status.code) if span.status.code in list(SpanStatus) else SpanStatus.UNSET,
        status_text=span.status.message,
    )


def _attributes(pairs: Iterable[Any]) -> dict[str, Value]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Value:
    kind = value.WhichOneof("value")
    if kind in ("string_value", "bool_value", "int_value", "double_value"):
        plain: Value = getattr(value, kind)
        return plain
    if kind == "array_value":
        return [str(_value(item)) for item in value.array_value.values]
    return "" if kind is None else str(getattr(value, kind))
