"""Trace context on the wire, and names in both dialects."""

import pytest

from contracts.tracing import names
from contracts.tracing.context import (
    TraceContext,
    is_in_ratio,
    new_span_id,
    new_trace_id,
    parse_traceparent,
)

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"00-{TRACE}-{SPAN}-01", TraceContext(TRACE, SPAN, True)),
        (f"00-{TRACE}-{SPAN}-00", TraceContext(TRACE, SPAN, False)),
        (f"00-{TRACE}-{SPAN}-03", TraceContext(TRACE, SPAN, True)),
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-brings", TraceContext(TRACE, SPAN, True)),
        (f"00-{TRACE}-{SPAN}-01-more", None),
        (f"ff-{TRACE}-{SPAN}-01", None),
        (f"00-{'0' * 32}-{SPAN}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE.upper()}-{SPAN}-01", None),
        (f"00-{TRACE}-{SPAN}", None),
        (f"00-{TRACE}-{SPAN}-01\n", None),
        ("", None),
        (None, None),
    ],
)
def test_a_traceparent_is_read_as_the_specification_says(text, found):
    """Versions to come, flags, and everything that makes a new trace begin."""
    assert parse_traceparent(text) == found


def test_a_context_is_written_as_it_is_read():
    """Round trip, with ids of our own."""
    context = TraceContext(new_trace_id(), new_span_id(), True)

    assert parse_traceparent(context.header) == context


def test_a_ratio_keeps_about_its_part_and_always_the_same_traces():
    """10,000 ids at 10 %; none at 0, all at 1."""
    ids = [new_trace_id() for _ in range(10_000)]
    kept = {trace_id for trace_id in ids if is_in_ratio(trace_id, 0.1)}

    assert 800 < len(kept) < 1200
    assert kept <= {trace_id for trace_id in ids if is_in_ratio(trace_id, 0.2)}
    assert not any(is_in_ratio(trace_id, 0.0) for trace_id in ids)
    assert all(is_in_ratio(trace_id, 1.0) for trace_id in ids)


SPAN_ATTRIBUTES = {
    names.OPERATION: "chat",
    names.PROVIDER: "tidegate",
    names.REQUEST_MODEL: "chat",
    names.REQUEST_STREAM: True,
    names.RESPONSE_ID: "a",
    names.RESPONSE_MODEL: "chat-v2",
    names.FINISH_REASONS: ["stop"],
    names.TIME_TO_FIRST_CHUNK: 0.25,
    names.INPUT_TOKENS: 32,
    names.OUTPUT_TOKENS: 8,
    names.CACHE_READ_TOKENS: 16,
    names.CACHE_WRITE_TOKENS: 16,
    names.ERROR_TYPE: "timeout",
}


def test_both_dialects_name_a_call_as_their_documents_do():
    """Snapshots: v1.41.0's gen-ai-spans.md, and the migration guide of semantic-conventions-genai."""
    v1_41 = names.in_dialect(SPAN_ATTRIBUTES, names.Dialect.V1_41)
    latest = names.in_dialect(SPAN_ATTRIBUTES, names.Dialect.LATEST)

    shared = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "tidegate",
        "gen_ai.request.model": "chat",
        "gen_ai.request.stream": True,
        "gen_ai.response.id": "a",
        "gen_ai.response.model": "chat-v2",
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.response.time_to_first_chunk": 0.25,
        "gen_ai.usage.input_tokens": 32,
        "gen_ai.usage.output_tokens": 8,
        "gen_ai.usage.cache_read.input_tokens": 16,
        "error.type": "timeout",
    }
    assert v1_41 == shared | {"gen_ai.usage.cache_creation.input_tokens": 16}
    assert latest == shared | {"gen_ai.usage.cache_write.input_tokens": 16}


def test_the_names_of_v1_41_are_those_of_opentelemetrys_own_package():
    """opentelemetry-semantic-conventions has every gen_ai attribute that we emit."""
    from opentelemetry.semconv._incubating.attributes import gen_ai_attributes

    known = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI")}
    ours = {value for value in vars(names).values() if isinstance(value, str) and value.startswith("gen_ai.")}

    assert ours <= known


@pytest.mark.parametrize(
    ("environ", "dialect"),
    [
        ({}, names.Dialect.V1_41),
        ({"OTEL_SEMCONV_STABILITY_OPT_IN": "http"}, names.Dialect.V1_41),
        ({"OTEL_SEMCONV_STABILITY_OPT_IN": "http, gen_ai_latest_experimental"}, names.Dialect.LATEST),
    ],
)
def test_the_dialect_is_chosen_by_opentelemetrys_own_variable(environ, dialect):
    """A list with commas, shared with other conventions."""
    assert names.dialect_of(environ) is dialect
