"""The generator's pure parts: what is told over the pipe, what counts as a token, what a dead process owes."""

import math
from array import array

import numpy as np
import pytest

from loadtest.call import Call, Tensor
from loadtest.generating.answer import Answer, CallFailed
from loadtest.generating.collecting import Collector
from loadtest.generating.generator import num_processes_for
from loadtest.generating.messages import Frames, News, Ready, Sent, Target, frame, request_of
from loadtest.generating.openai_http import ChatSender, _note
from loadtest.generating.sender import headers_of
from loadtest.generating.sse import Events
from loadtest.generating.tensors import raw_of
from loadtest.records import Status
from loadtest.testing import PlainArgument, plain_task

CALL = Call(index=3, t_intended_s=1.0, user="chat", protocol="openai_chat", service="chat")


def work_of(rate_per_s=10.0, duration_s=1.0, **options):
    return plain_task(PlainArgument("openai_chat", rate_per_s, duration_s, **options), Target()).work


def test_frames_come_whole_however_they_were_cut():
    """Two frames, a byte at a time, and at once with half of a third."""
    two, frames = frame(Ready(7)) + frame(Ready(8)), Frames()

    assert len([body for byte in two for body in frames.feed(bytes([byte]))]) == 2
    assert len(list(frames.feed(two + two[:5]))) == 2
    assert len(list(frames.feed(two[5:]))) == 2


def test_events_come_whole_however_they_were_cut():
    """Comments, other fields and CRLF are no data."""
    events, wire = Events(), b": hello\r\nevent: x\ndata: one\r\n\r\ndata:two\n\ndata: cut"

    assert [data for byte in wire for data in events.feed(bytes([byte]))] == [b"one", b"two"]


def test_chunks_with_text_are_tokens_and_nothing_else_is():
    """Role, two pieces of text, finish reason, usage of five tokens: two chunks, which hold 3 and 2."""
    answer = Answer()
    for at_s, data in enumerate(
        [
            b'{"choices": [{"delta": {"role": "assistant", "content": ""}}]}',
            b'{"choices": [{"delta": {"content": "the "}}], "usage": null}',
            b'{"choices": [{"delta": {"content": "tide"}}]}',
            b'{"choices": [{"delta": {}, "finish_reason": "length"}]}',
            b'{"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 5, '
            b'"prompt_tokens_details": {"cached_tokens": 8}}}',
        ]
    ):
        _note(data, answer, float(at_s))

    assert (answer.t_first_s, list(answer.chunk_times_s)) == (1.0, [1.0, 2.0])
    assert list(answer.chunk_tokens) == [3, 2]
    assert (answer.input_tokens, answer.output_tokens, answer.cached_tokens) == (9, 5, 8)


def test_usage_in_each_chunk_says_what_that_chunk_holds():
    """vLLM's continuous_usage_stats: running totals 1 and 4."""
    answer = Answer()
    for total in (1, 4):
        _note(
            b'{"choices": [{"delta": {"content": "x"}}], "usage": {"completion_tokens": %d}}' % total,
            answer,
            0.0,
        )

    assert list(answer.chunk_tokens) == [1, 3]


@pytest.mark.parametrize("data", [b'{"error": {"message": "no"}}', b"{"])
def test_an_error_in_the_stream_and_what_is_no_json_fail_the_call(data):
    with pytest.raises(CallFailed):
        _note(data, Answer(), 0.0)


def test_a_later_turn_sends_what_was_said_before_it():
    """The user's first words, the answer, the user's second."""
    first = Call(0, 0.0, "chat", "openai_chat", "chat", messages=({"role": "user", "content": "one"},))
    second = Call(0, 0.0, "chat", "openai_chat", "chat", messages=({"role": "user", "content": "two"},))

    body = ChatSender(None).prepare(second, [(first, "first answer")])

    assert [text in body for text in (b'"one"', b'"first answer"', b'"two"')] == [True] * 3
    assert body.index(b'"one"') < body.index(b'"first answer"') < body.index(b'"two"')


def test_the_key_comes_from_the_variable_that_the_plan_names(monkeypatch):
    monkeypatch.setenv("SOME_KEY", "tg-1")
    call = Call(0, 0.0, "u", "openai_chat", "chat", session="s", headers=(("TraceParent", "00-a-b-01"),))

    assert headers_of(call, Target(key_env="SOME_KEY")) == [
        ("traceparent", "00-a-b-01"),
        ("authorization", "Bearer tg-1"),
        ("x-tidegate-session", "s"),
    ]
    assert headers_of(call, Target())[1:] == [("x-tidegate-session", "s")]


def test_a_row_is_on_the_runs_clock_and_survives_the_pipe():
    answer = Answer(t_sent_s=101.5)
    answer.chunk(102.0, 2)
    answer.ended(103.0)

    row = request_of(answer.row(CALL, 3, 0, Status.ERROR, "x" * 500, 1.0, 100.0), process=1)

    assert (row.t_sent_s, row.t_first_s, row.t_last_s) == (1.5, 2.0, 3.0)
    assert (row.chunk_times_s, row.chunk_tokens) == (array("d", [2.0]), array("q", [2]))
    assert (row.process, row.status, len(row.error)) == (1, Status.ERROR, 200)


def test_what_a_dead_process_did_not_tell_is_censored_or_not_sent():
    """Ten calls, a tenth of a second apart; at 0.55 s one had ended, one was under way, four were due besides."""
    collector = Collector(work_of())
    sent = [Sent(index, 0, "plain", "mock", "", index / 10, index / 10) for index in (0, 1)]
    row = Answer(t_sent_s=0.0).row(CALL, 0, 0, Status.OK, "", 0.0, 0.0)
    collector.take(0, News(0.2, sent, [row], 1))

    collector.finish(0.55, num_processes=1)

    assert {row.index: row.status.name for row in collector.rows} == {
        0: "OK", 1: "CENSORED", 2: "NOT_SENT", 3: "NOT_SENT", 4: "NOT_SENT", 5: "NOT_SENT"
    }  # fmt: skip
    assert next(row.t_last_s for row in collector.rows if row.index == 1) == 0.55
    assert math.isnan(next(row.t_sent_s for row in collector.rows if row.index == 2))


def test_as_many_processes_as_the_peak_second_needs_but_no_more_than_cpus():
    """5 calls/s of a guessed 10 s are 50 streams, one process; 20 a second are four; a hold needs its slots."""
    assert num_processes_for(work_of(5, 60), 50, num_cpus=16) == 1
    assert num_processes_for(work_of(20, 60), 50, num_cpus=16) == 4
    assert num_processes_for(work_of(20, 60), 50, num_cpus=2) == 2
    assert num_processes_for(work_of(slots=120), 50, num_cpus=16) == 3
    assert num_processes_for(work_of(0.1, 1), 50, num_cpus=16) == 1


def test_tensors_are_packed_by_their_datatype():
    assert raw_of(Tensor("IN", "FP32", (1, 2), (1.0, 2.0))) == np.array([1, 2], "<f4").tobytes()
    assert raw_of(Tensor("IN", "BYTES", (2,), ("a", "é"))) == b"\1\0\0\0a\2\0\0\0\xc3\xa9"


@pytest.mark.parametrize(
    ("tensor", "said"),
    [
        (Tensor("IN", "FP32", (3,), (1.0,)), "takes 3"),
        (Tensor("IN", "FP8", (1,), (1.0,)), "must be BYTES or"),
    ],
)
def test_a_tensor_that_does_not_fit_is_refused_with_the_numbers(tensor, said):
    with pytest.raises(ValueError, match=said):
        raw_of(tensor)
