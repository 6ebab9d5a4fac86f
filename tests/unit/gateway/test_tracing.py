"""Which calls are traced, and the gateway's own spans."""

import pytest
from starlette.requests import Request

from contracts.tracing import names
from contracts.tracing.context import TraceContext, new_span_id, new_trace_id, parse_traceparent
from contracts.tracing.span import SpanKind, SpanStatus
from contracts.tracing.timing import PhaseFigures, Timing
from gateway import tracing
from gateway.authentication import Authenticator
from gateway.call import Call
from gateway.errors import ClientGone, UpstreamUnavailable
from gateway.http_caller import authenticate
from gateway.inner_calls import PRINCIPAL
from gateway.limit_counters import Counters
from gateway.limiter import Limiter
from gateway.pipeline import Pipeline
from gateway.principal import NO_LIMITS, Principal
from gateway.route_table import RouteTable
from gateway.routing import Target
from gateway.spans import spans_of
from gateway.tracing import Budget, Tracer


class Spans(list):
    """A sender that keeps."""

    def send(self, spans):
        self.extend(spans)


def asked(is_sampled: bool) -> dict[str, str]:
    return {"traceparent": TraceContext(new_trace_id(), new_span_id(), is_sampled).header}


def test_a_call_is_traced_by_its_ratio():
    """All at 1, none at 0; where nothing listens none at all."""
    assert Tracer(Spans(), 1.0).begin({}).context.is_sampled
    assert not Tracer(Spans(), 0.0).begin({}).context.is_sampled
    assert not Tracer(None, 1.0).begin({}).context.is_sampled


def test_a_client_that_traces_this_call_has_its_trace_continued():
    """At a ratio of 0: it asks. Its span is the parent."""
    headers = asked(is_sampled=True)
    trace = Tracer(Spans(), 0.0).begin(headers)

    given = parse_traceparent(headers["traceparent"])
    assert (trace.context.trace_id, trace.parent_id) == (given.trace_id, given.span_id)
    assert (trace.context.is_sampled, trace.kept_because) == (True, "asked")


def test_a_client_that_does_not_trace_this_call_is_no_parent():
    """Nobody exports its span, so ours would be an orphan; the trace id stays."""
    headers = asked(is_sampled=False)
    trace = Tracer(Spans(), 1.0).begin(headers)

    given = parse_traceparent(headers["traceparent"])
    assert not trace.context.is_sampled
    assert (trace.context.trace_id, trace.parent_id) == (given.trace_id, "")
    assert trace.client_span_id == given.span_id


def test_clients_that_all_ask_are_held_to_the_budget(monkeypatch):
    """Two at once, and the third is not traced."""
    monkeypatch.setattr(tracing, "WHOLE_BURST", 2)
    tracer = Tracer(Spans(), 0.0)

    assert [tracer.begin(asked(is_sampled=True)).context.is_sampled for _ in range(3)] == [True, True, False]


def test_a_budget_comes_back_with_time_and_no_more_than_its_burst():
    """2 a second, 3 at once."""
    budget = Budget(2.0, 3, 0.0)

    assert [budget.take(0.0) for _ in range(4)] == [True, True, True, False]
    assert [budget.take(0.5), budget.take(0.5)] == [True, False]
    assert [budget.take(60.0) for _ in range(4)] == [True, True, True, False]


@pytest.mark.parametrize(
    ("has_failed", "took_s", "because"), [(True, 0.1, "error"), (False, 6.0, "slow"), (False, 0.1, "")]
)
def test_failed_and_slow_calls_are_kept_whatever_the_ratio(has_failed, took_s, because):
    """They have no spans at Triton, for that had to be decided before."""
    tracer = Tracer(Spans(), 0.0, slow_s=5.0)
    trace = tracer.begin({})

    assert tracer.keeps(trace, has_failed=has_failed, took_s=took_s) is bool(because)
    assert trace.kept_because == because
    assert trace.begin_attempt("a:1", 1).traceparent == ""


def test_when_everything_fails_some_of_it_is_kept(monkeypatch):
    """A budget of two."""
    monkeypatch.setattr(tracing, "KEPT_BURST", 2)
    tracer = Tracer(Spans(), 0.0)
    kept = [tracer.keeps(tracer.begin({}), has_failed=True, took_s=0.0) for _ in range(3)]

    assert kept == [True, True, False]


def test_a_part_of_a_call_is_kept_with_it_and_never_alone():
    """A summary that failed within a call that went well would be an orphan."""
    tracer = Tracer(Spans(), 0.0)
    whole = tracer.begin({})
    part = whole.part()

    assert part.parent_id == whole.context.span_id
    assert not tracer.keeps(part, has_failed=True, took_s=99.0)
    assert Tracer(Spans(), 1.0).begin({}).part().kept_because == "ratio"


def a_call(tracer: Tracer, **values) -> Call:
    call = Call(
        "r-1", "http", started_s=100.0, started_unix_s=1_000.0, operation="chat", service="chat", **values
    )
    call.trace = tracer.begin({})
    call.target = Target("chat-v2", "v2", "split 5 %")
    return call


def test_a_retried_call_has_a_span_of_each_attempt():
    """The first endpoint was gone, the second answered; both under the call's span, each with its own context."""
    call = a_call(Tracer(Spans(), 1.0))
    call.admitted_s = 100.5
    first = call.begin_at("10.0.0.1:8001")
    first.end(UpstreamUnavailable("gone"))
    call.try_again(UpstreamUnavailable("gone"))
    second = call.begin_at("10.0.0.2:8001")
    second.end()

    whole, admit, *attempts = spans_of(call, 102.0)

    assert (whole.name, whole.kind, whole.duration_s) == ("chat chat", SpanKind.SERVER, 2.0)
    assert (admit.parent_id, admit.duration_s) == (whole.span_id, 0.5)
    assert [each.parent_id for each in attempts] == [whole.span_id] * 2
    assert [each.span_id for each in attempts] == [first.span_id, second.span_id]
    assert [each.attributes[names.SERVER_ADDRESS] for each in attempts] == ["10.0.0.1", "10.0.0.2"]
    assert [each.status for each in attempts] == [SpanStatus.ERROR, SpanStatus.UNSET]
    assert parse_traceparent(second.traceparent) == TraceContext(whole.trace_id, second.span_id, True)


def test_a_call_that_its_client_left_ends_its_spans_and_says_so():
    """The attempt was not over: it ends with the call."""
    call = a_call(Tracer(Spans(), 1.0))
    call.begin_at("10.0.0.1:8001")
    call.fail(ClientGone("the client left"))

    whole, attempt = spans_of(call, 101.0)

    assert {span.attributes[names.ERROR_TYPE] for span in (whole, attempt)} == {"cancelled"}
    assert {span.end_unix_ns for span in (whole, attempt)} == {1_001_000_000_000}
    assert {span.status for span in (whole, attempt)} == {SpanStatus.ERROR}


def a_pipeline(spans: Spans, rows: list, ratio: float) -> Pipeline:
    limiter = Limiter(Counters.in_memory(), lambda _: NO_LIMITS)
    tracer = Tracer(spans, ratio)
    return Pipeline(Authenticator(None), limiter, RouteTable(["chat"]), rows.append, tracer=tracer)


async def test_the_rows_of_all_attempts_carry_the_id_of_a_trace_that_is_kept():
    """Which is known only at the end: this call was kept because it failed."""
    spans, rows = Spans(), []
    pipeline = a_pipeline(spans, rows, ratio=0.0)
    call = Call("r-1", "http", operation="chat")
    pipeline.authenticate(call, {})
    pipeline.enter(call, "chat")
    await pipeline.admit(call, 3, 5)
    for endpoint in ("a:1", "b:1"):
        call.begin_at(endpoint).end(UpstreamUnavailable("gone"))
        if endpoint == "a:1":
            call.try_again(UpstreamUnavailable("gone"))
    call.fail(UpstreamUnavailable("gone"))
    await pipeline.end(call)

    assert [row.attempt for row in rows] == [1, 2]
    assert {row.trace_id for row in rows} == {spans[0].trace_id}


async def test_a_call_that_is_not_kept_names_no_trace():
    """Its row has no id that leads nowhere."""
    spans, rows = Spans(), []
    pipeline = a_pipeline(spans, rows, ratio=0.0)
    call = Call("r-1", "http", operation="chat")
    pipeline.authenticate(call, {})
    await pipeline.end(call)

    assert [row.trace_id for row in rows] == [""]
    assert spans == []


async def test_each_line_of_a_batch_has_a_trace_of_its_own():
    """The gateway asks itself for it, so nobody's headers are read, and no key."""
    spans, rows = Spans(), []
    pipeline = a_pipeline(spans, rows, ratio=1.0)
    who = Principal("tg_a", "acme", frozenset({"infer"}))
    for request_id in ("batch-0", "batch-1"):
        call = Call(request_id, "http", operation="chat")
        scope = {"type": "http", "headers": [], PRINCIPAL: who, "tidegate.call": call}
        authenticate(Request(scope), pipeline)
        await pipeline.end(call)

    assert [row.tenant for row in rows] == ["acme", "acme"]
    assert [row.trace_id for row in rows] == [span.trace_id for span in spans]
    assert len({call.trace.context.trace_id, *(span.trace_id for span in spans)}) == 2


def test_a_slow_call_that_was_not_sampled_shows_the_engines_part_all_the_same():
    """The engine tells every answer's timing; a call that is traced whole has these spans from the instance."""
    phase = PhaseFigures(1, 32, 1.0, 1, 3)
    timing = Timing(1000.0, 1004.0, 1005.0, 1006.0, 3, 0, 0, 8, phase, phase)
    spans = {}
    for ratio in (0.0, 1.0):
        call = a_call(Tracer(Spans(), ratio))
        attempt = call.begin_at("10.0.0.1:8001")
        attempt.note(timing)
        attempt.end()
        spans[ratio] = spans_of(call, 106.0)

    queue = spans[0.0][-3]
    assert [span.name for span in spans[0.0][-3:]] == ["queue", "prefill", "decode"]
    assert (queue.parent_id, queue.duration_s, call.queue_s) == (spans[0.0][-4].span_id, 4.0, 4.0)
    assert spans[1.0][-1].name == "triton chat-v2"
