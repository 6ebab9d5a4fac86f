"""Where a request's time goes: noted by the engine, made into spans by the bridge."""

import json
import os

import pytest

from contracts.tracing import names
from contracts.tracing.context import TraceContext, instance_context
from contracts.tracing.span import Link, SpanStatus
from contracts.tracing.timing import PhaseFigures, Timing, decode_timing, encode_timing
from python_backend.bridge import testing

testing.install()

from python_backend.bridge.attachment import InstanceName  # noqa: E402 (after the stand-in is there)
from python_backend.bridge.errors import WorkerUnavailable  # noqa: E402
from python_backend.bridge.testing import FakeRequest  # noqa: E402
from python_backend.bridge.tracing import BridgeTracing, RequestTrace, context_of  # noqa: E402
from python_backend.messages import EmbedResult  # noqa: E402
from python_backend.worker.blocks import BlockPool  # noqa: E402
from python_backend.worker.engine import Engine, EngineConfig  # noqa: E402
from tests.unit.python_backend.test_blocks import FakeLessor  # noqa: E402
from tests.unit.python_backend.test_engine import (  # noqa: E402
    EOS,
    GREEDY,
    CountingRunner,
    LetterTokenizer,
    run_to_end,
)

TRITON = TraceContext("a" * 32, "b" * 16, True)
GATEWAY = TraceContext("a" * 32, "c" * 16, True)
OTHER = TraceContext("d" * 32, "e" * 16, True)


class Ticking:
    """A clock that goes on by a second each time it is read."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        self.now += 1.0
        return self.now


def engine_of(total_blocks=64):
    pool = BlockPool(FakeLessor(total_blocks), block_tokens=4, extent_blocks=1)
    config = EngineConfig(frozenset({EOS}), 32, total_blocks)
    return Engine(config, LetterTokenizer(), CountingRunner(), pool, clock=Ticking())


def timing_of(engine: Engine, request_id: int) -> Timing:
    deltas = run_to_end(engine)[request_id]
    assert [delta.timing for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
    return deltas[-1].timing


def test_a_requests_time_is_told_once_with_its_last_delta():
    """Five prompt tokens in one step, which makes the first token; three more steps for the other three."""
    engine = engine_of()
    engine.add(1, "abcde", GREEDY)
    timing = timing_of(engine, 1)

    assert (timing.accepted_unix_s, timing.started_unix_s, timing.first_token_unix_s) == (1001, 1002, 1003)
    assert timing.ended_unix_s > timing.first_token_unix_s
    assert timing.prefill == PhaseFigures(
        num_steps=1, num_tokens=5, mean_batch=1.0, max_batch=1, num_blocks=2
    )
    assert (timing.decode.num_steps, timing.decode.num_tokens) == (3, 3)
    assert (timing.num_ahead, timing.num_output_tokens, timing.num_preemptions) == (0, 4, 0)
    assert timing.events == []


def test_requests_that_run_together_tell_their_batch_and_who_was_ahead():
    """Three at once: steps of three."""
    engine = engine_of()
    for request_id in (1, 2, 3):
        engine.add(request_id, "a", GREEDY)
    timings = {request_id: deltas[-1].timing for request_id, deltas in run_to_end(engine).items()}

    assert [timings[request_id].num_ahead for request_id in (1, 2, 3)] == [0, 1, 2]
    assert {(timing.decode.mean_batch, timing.decode.max_batch) for timing in timings.values()} == {(3.0, 3)}


def test_only_a_traced_request_keeps_moments():
    """Its 1st, 2nd and 4th token, with batch and blocks."""
    engine = engine_of()
    engine.add(1, "a", GREEDY, is_traced=True)
    events = timing_of(engine, 1).events

    assert [event.figures["tokens"] for event in events] == [1, 2, 4]
    assert events[0].figures["batch"] == 1


def test_a_preempted_request_counts_it_and_says_when():
    """A pool of four blocks has no room for both when one of a higher priority comes."""
    engine = engine_of(total_blocks=4)
    engine.add(1, "abcdefg", GREEDY, is_traced=True)
    engine.step(0.0)
    engine.add(2, "abcdefg", GREEDY, priority=1)
    timings = {request_id: deltas[-1].timing for request_id, deltas in run_to_end(engine).items()}

    assert timings[2].num_preemptions == 0
    assert timings[1].num_preemptions == 1
    assert [event.name for event in timings[1].events if "tok" not in event.name] == ["preempted"]


def test_a_request_that_waits_while_the_pool_has_no_room_says_for_how_many_steps():
    """Two blocks each of a pool of two: the second waits through the first one's four steps, and so does the
    third behind it, which then waits for the second."""
    engine = engine_of(total_blocks=2)
    for request_id in (1, 2, 3):
        engine.add(request_id, "abcd", GREEDY)
    timings = {request_id: deltas[-1].timing for request_id, deltas in run_to_end(engine).items()}

    assert [timings[request_id].num_short_steps for request_id in (1, 2, 3)] == [0, 4, 8]
    assert timings[2].prefill.num_steps == 1


def test_a_request_that_never_ran_has_only_waited():
    """Cancelled in the queue."""
    engine = engine_of()
    engine.add(1, "a", GREEDY)
    timing = engine.cancel(1).timing

    assert (timing.started_unix_s, timing.first_token_unix_s, timing.prefill.num_steps) == (0, 0, 0)


def a_request(own: TraceContext | None, triton: TraceContext | None) -> FakeRequest:
    parameters = {"traceparent": own.header} if own else {}
    context = json.dumps({"traceparent": triton.header, "tracestate": ""}) if triton else None
    return FakeRequest({}, json.dumps(parameters), context_json=context)


@pytest.mark.parametrize(
    ("own", "triton", "found"),
    [
        (None, None, None),
        (GATEWAY, TRITON, TRITON),
        (GATEWAY, None, GATEWAY),
        (None, TRITON, TRITON),
        (OTHER, TRITON, OTHER),
    ],
)
def test_the_parent_is_tritons_span_unless_the_request_itself_names_another_trace(own, triton, found):
    """On a stream that several share Triton knows the first one's trace only."""
    assert context_of(a_request(own, triton)) == found


class Spans(list):
    is_on = True

    def send(self, spans):
        self.extend(spans)


@pytest.fixture
def tracing():
    made = BridgeTracing(InstanceName("chat", "chat-0"))
    made._sender = Spans()
    return made


def a_timing(**values) -> Timing:
    phase = PhaseFigures(2, 5, 1.5, 2, 3)
    given = {
        "accepted_unix_s": 1.0,
        "started_unix_s": 2.0,
        "first_token_unix_s": 3.0,
        "ended_unix_s": 5.0,
        "num_ahead": 4,
        "num_cached_tokens": 16,
        "num_preemptions": 0,
        "num_output_tokens": 8,
        "prefill": phase,
        "decode": phase,
        "num_short_steps": 2,
    }
    return Timing(**given | values)


def test_a_finished_request_has_four_spans_one_after_the_other(tracing):
    """The bridge's own under Triton's; queue, prefill and decode under that."""
    tracing.end_generate(RequestTrace(TRITON, 7), a_timing())
    own, queue, prefill, decode = tracing._sender

    assert (own.name, own.parent_id, own.attributes[names.INSTANCE]) == ("bridge", TRITON.span_id, "chat-0")
    assert {span.parent_id for span in (queue, prefill, decode)} == {own.span_id}
    assert {span.trace_id for span in tracing._sender} == {TRITON.trace_id}
    assert [span.duration_s for span in (queue, prefill, decode)] == [1.0, 1.0, 2.0]
    assert (queue.attributes[names.NUM_AHEAD], queue.attributes[names.CACHE_READ_TOKENS]) == (4, 16)
    assert queue.attributes[names.NUM_SHORT_STEPS] == 2
    assert (prefill.attributes[names.COMPUTED_TOKENS], prefill.attributes[names.KV_BLOCKS]) == (5, 3)
    assert (decode.attributes[names.OUTPUT_TOKENS], decode.attributes[names.BATCH_SIZE]) == (8, 1.5)


@pytest.mark.parametrize(
    ("reached", "spans"),
    [
        ({"started_unix_s": 0.0, "first_token_unix_s": 0.0}, ["bridge", "queue"]),
        ({"first_token_unix_s": 0.0}, ["bridge", "queue", "prefill"]),
    ],
)
def test_a_request_that_was_cut_has_spans_as_far_as_it_came(tracing, reached, spans):
    """In the queue, and in prefill."""
    tracing.end_generate(RequestTrace(TRITON, 0), a_timing(**reached), "cancelled by the client")

    assert [span.name for span in tracing._sender] == spans
    assert tracing._sender[0].status is SpanStatus.ERROR
    assert tracing._sender[-1].end_unix_ns == 5_000_000_000


def test_a_worker_that_died_leaves_a_span_that_says_so(tracing):
    """It told nothing of where the time went."""
    tracing.end_generate(RequestTrace(TRITON, 0), None, "the worker died")

    (own,) = tracing._sender
    assert (own.status, own.status_text) == (SpanStatus.ERROR, "the worker died")


def test_a_batch_has_one_forward_with_its_rows(tracing):
    """For each of its requests that is traced; none when the worker did not answer."""
    answer = EmbedResult(1, 4, b"", [], ran_unix_s=(1.0, 1.5))
    tracing.end_batch(RequestTrace(TRITON, 0), answer, 12)
    tracing.end_batch(RequestTrace(TRITON, 0), WorkerUnavailable("gone"), 12)
    tracing.end_batch(None, answer, 12)
    own, forward, failed = tracing._sender

    assert (forward.name, forward.parent_id, forward.duration_s) == ("forward", own.span_id, 0.5)
    assert forward.attributes[names.BATCH_SIZE] == 12
    assert (failed.name, failed.status_text) == ("bridge", "gone")


def test_without_telemetry_a_request_is_not_even_looked_at():
    """No socket is named in the environment."""
    assert BridgeTracing(InstanceName("chat", "chat-0")).begin(None, 0) is None


def test_an_instance_that_started_leaves_a_span_that_its_requests_link_to(tracing):
    """And the scaler, which knows the same three things of it: Triton's pid, model and instance."""
    tracing.started()
    tracing.end_generate(RequestTrace(TRITON, 0), None)
    start, own = tracing._sender

    known = instance_context(os.getppid(), "chat", "chat-0")
    assert (start.name, start.trace_id, start.span_id) == ("start chat-0", known.trace_id, known.span_id)
    assert own.links == [Link(start.trace_id, start.span_id)]


def test_a_timing_comes_back_from_its_json_as_it_was():
    """The output `timing` of a last response."""
    assert decode_timing(encode_timing(a_timing())) == a_timing()
