"""The client's end of a trace."""

from contracts.tracing import names
from contracts.tracing.context import parse_traceparent
from contracts.tracing.span import SpanKind, SpanStatus
from loadtest.call import Call
from loadtest.generating.answer import Answer
from loadtest.generating.tracing import ClientTracing
from loadtest.records import Status

CALL = Call(7, 1.0, "talker", "openai_chat", "chat", headers=(("x-own", "1"),))


class Spans(list):
    is_on = True

    def send(self, spans):
        self.extend(spans)


def tracing_at(ratio: float) -> ClientTracing:
    made = ClientTracing("somewhere", ratio)
    made._sender = Spans()
    return made


def answered() -> Answer:
    answer = Answer(output_tokens=8, input_tokens=32)
    answer.t_sent_s = 100.0
    answer.chunk(100.5, 1)
    answer.ended(102.0)
    return answer


def test_a_traced_call_brings_its_context_and_leaves_the_span_that_it_names():
    """Its own headers stay."""
    tracing = tracing_at(1.0)
    trace = tracing.begin()
    headers = dict(trace.of(CALL).headers)
    tracing.end(trace, CALL, answered(), Status.OK, "")

    (span,) = tracing._sender
    context = parse_traceparent(headers["traceparent"])
    assert headers["x-own"] == "1"
    assert (span.trace_id, span.span_id, span.parent_id) == (context.trace_id, context.span_id, "")
    assert (span.name, span.kind, span.service) == ("chat chat", SpanKind.CLIENT, names.LOADTEST)
    assert round(span.duration_s, 3) == 2.0
    assert span.attributes[names.TIME_TO_FIRST_CHUNK] == 0.5


def test_a_failed_call_says_how_and_one_that_never_went_out_leaves_nothing():
    """The second was censored before it was sent."""
    tracing = tracing_at(1.0)
    tracing.end(tracing.begin(), CALL, answered(), Status.ERROR, "http 503")
    tracing.end(tracing.begin(), CALL, Answer(), Status.NOT_SENT, "")

    (span,) = tracing._sender
    assert (span.status, span.status_text) == (SpanStatus.ERROR, "http 503")


def test_about_one_call_in_a_hundred_is_traced_and_none_without_a_stack():
    """The generator does nothing for the others."""
    tracing = tracing_at(0.01)

    assert ClientTracing().begin() is None
    assert 40 <= sum(tracing.begin() is not None for _ in range(10_000)) <= 190
