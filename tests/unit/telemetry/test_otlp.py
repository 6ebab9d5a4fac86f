"""OTLP as Triton sends it (JSON) and as SDKs do (protobuf)."""

import json

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from contracts.tracing.span import SpanKind, SpanStatus
from telemetry.otlp import JSON_TYPE, PROTOBUF_TYPE, OtlpInvalid, read_otlp

TRITONS = {
    "resourceSpans": [
        {
            "resource": {
                "attributes": [{"key": "service.name", "value": {"stringValue": "triton-inference-server"}}]
            },
            "scopeSpans": [
                {
                    "scope": {"name": "triton-server"},
                    "spans": [
                        {
                            "traceId": "0af7651916cd43dd8448eb211c80319c",
                            "spanId": "b7ad6b7169203331",
                            "parentSpanId": "00f067aa0ba902b7",
                            "name": "InferRequest",
                            "kind": 2,
                            "startTimeUnixNano": "1796126221014631434",
                            "endTimeUnixNano": 1796126221892114400,
                            "attributes": [
                                {"key": "triton.model_name", "value": {"stringValue": "chat"}},
                                {"key": "triton.model_version", "value": {"intValue": "1"}},
                            ],
                            "events": [{"name": "GRPC_SEND_END", "timeUnixNano": 1796126221889694653}],
                            "status": {"code": 2, "message": "broke"},
                            "aFieldOfTheFuture": {},
                        }
                    ],
                }
            ],
        }
    ]
}


def test_tritons_json_becomes_spans_with_its_ids_as_they_were():
    """Ids in hexadecimal, numbers as strings or not, a field that nobody knows."""
    (span,) = read_otlp(json.dumps(TRITONS).encode(), JSON_TYPE)

    assert (span.service, span.name, span.kind) == (
        "triton-inference-server",
        "InferRequest",
        SpanKind.SERVER,
    )
    assert span.trace_id == "0af7651916cd43dd8448eb211c80319c"
    assert (span.span_id, span.parent_id) == ("b7ad6b7169203331", "00f067aa0ba902b7")
    assert (span.start_unix_ns, span.end_unix_ns) == (1796126221014631434, 1796126221892114400)
    assert span.attributes == {"triton.model_name": "chat", "triton.model_version": 1}
    assert [(event.name, event.at_unix_ns) for event in span.events] == [
        ("GRPC_SEND_END", 1796126221889694653)
    ]
    assert (span.status, span.status_text) == (SpanStatus.ERROR, "broke")


def test_protobuf_says_the_same():
    """As the SDK's exporter sends it; attributes of each type."""
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    made = resource.scope_spans.add().spans.add(trace_id=b"\1" * 16, span_id=b"\2" * 8, name="app", kind=5)
    for key, value in (("s", "x"), ("b", True), ("i", 3), ("d", 0.5)):
        kind = {str: "string_value", bool: "bool_value", int: "int_value", float: "double_value"}[type(value)]
        setattr(made.attributes.add(key=key).value, kind, value)
    made.attributes.add(key="list").value.array_value.values.add(string_value="y")
    made.links.add(trace_id=b"\3" * 16, span_id=b"\4" * 8)

    (span,) = read_otlp(request.SerializeToString(), PROTOBUF_TYPE)

    assert (span.trace_id, span.parent_id, span.service) == ("01" * 16, "", "unknown")
    assert span.kind is SpanKind.INTERNAL
    assert span.attributes == {"s": "x", "b": True, "i": 3, "d": 0.5, "list": ["y"]}
    assert [(link.trace_id, link.span_id) for link in span.links] == [("03" * 16, "04" * 8)]


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"\xff\xff\xff", PROTOBUF_TYPE),
        (b"{", JSON_TYPE),
        (b"\xff", JSON_TYPE),
        (b'{"resourceSpans": 3}', JSON_TYPE),
        (b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "zz"}]}]}]}', JSON_TYPE),
        (b"[" * 100_000, JSON_TYPE),
    ],
)
def test_what_is_no_otlp_is_refused(body, content_type):
    """Never another exception: the body comes from anybody on this machine."""
    with pytest.raises(OtlpInvalid):
        read_otlp(body, content_type)
