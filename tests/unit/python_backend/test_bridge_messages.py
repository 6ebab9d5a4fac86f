"""Triton's requests -> ours, ours -> Triton's responses, without Triton."""

import json

import numpy as np
import pytest

from contracts.tracing.timing import PhaseFigures, Timing, decode_timing
from python_backend.bridge import testing

testing.install()

from python_backend.bridge.errors import InvalidRequest  # noqa: E402 (after the stand-in is there)
from python_backend.bridge.requests import MAX_PROMPT_BYTES, read_generate, read_texts  # noqa: E402
from python_backend.bridge.responses import Reply, TextReply, triton_error  # noqa: E402
from python_backend.bridge.testing import FakeRequest, FakeSender  # noqa: E402
from python_backend.messages import Delta, TokenLogprobs  # noqa: E402


def request_of(**inputs) -> FakeRequest:
    return FakeRequest({"text_input": b"hi"} | inputs)


def replies_to(request: FakeRequest, *deltas: Delta) -> FakeSender:
    sender = FakeSender()
    text_reply = TextReply(read_generate(request, 0.0), Reply(sender))
    for delta in deltas:
        text_reply.push(delta)
    return sender


def test_a_plain_request_gets_vllms_defaults():
    """Not streamed, the prompt in front of the answer, 16 tokens, temperature 1."""
    wanted = read_generate(request_of(), 0.0)

    assert (wanted.prompt, wanted.stream, wanted.prepend_input) == ("hi", False, True)
    assert (wanted.sampling.max_tokens, wanted.sampling.temperature) == (16, 1.0)
    assert wanted.deadline_unix_s is None


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        pytest.param({"text_input": b""}, "empty", id="empty"),
        pytest.param({"text_input": b"\xff\xfe\x80\x00\xc3("}, "byte 0xff at offset 0", id="not UTF-8"),
        pytest.param({"text_input": "ok é".encode()[:-1]}, "at offset 3", id="cut character"),
        pytest.param({"text_input": [b"a", b"b"]}, "2 elements, exactly 1", id="two prompts"),
        pytest.param({"text_input": b"x" * (MAX_PROMPT_BYTES + 1)}, str(MAX_PROMPT_BYTES), id="too large"),
        pytest.param({"sampling_parameters": b'{"max_tokens": 0}'}, "max_tokens = 0", id="sampling"),
        pytest.param({"sampling_parameters": b"\xff"}, "not UTF-8", id="sampling is no text"),
        pytest.param(
            {"stream": True, "exclude_input_in_output": False}, "exclude_input", id="prompt in a stream"
        ),
    ],
)
def test_what_a_client_can_get_wrong_is_refused_by_name(inputs, words):
    """Every text says which tensor and why."""
    with pytest.raises(InvalidRequest, match=words):
        read_generate(request_of(**inputs), 0.0)


def test_a_missing_prompt_is_named():
    with pytest.raises(InvalidRequest, match="text_input is missing"):
        read_generate(FakeRequest({}), 0.0)


def test_tenant_and_priority_are_request_parameters():
    """Nobody's and 0 unless given."""
    plain = read_generate(request_of(), 0.0)
    given = read_generate(
        FakeRequest({"text_input": b"hi"}, json.dumps({"tenant": "acme", "request_priority": -3})), 0.0
    )
    assert (plain.tenant, plain.priority) == ("", 0)
    assert (given.tenant, given.priority) == ("acme", -3)


@pytest.mark.parametrize(
    "parameters",
    [
        {"tenant": 5},
        {"tenant": "x" * 257},
        {"tenant": None},
        {"request_priority": "high"},
        {"request_priority": True},
        {"request_priority": 1.5},
        {"request_priority": 2**31},
    ],
)
def test_a_parameter_of_another_type_is_refused_by_name(parameters):
    """Too long and too large ones too."""
    (name,) = parameters
    with pytest.raises(InvalidRequest, match=f"{name} must be"):
        read_generate(FakeRequest({"text_input": b"hi"}, json.dumps(parameters)), 0.0)


def test_log_probabilities_come_with_each_response_when_the_flag_or_the_settings_ask_for_them():
    """Those since the last response, in the shape of Triton's vLLM backend; what is impossible is -9999."""
    deltas = (
        Delta(0, "", 1, logprobs=[TokenLogprobs(7, "c", -3.0, [(4, "a", -0.5), (5, "b", float("-inf"))])]),
        Delta(0, "ca", 1, logprobs=[TokenLogprobs(4, "a", -0.5, [(4, "a", -0.5)])]),
        Delta(0, "", 1, finish_reason="stop", logprobs=[TokenLogprobs(2, "<end>", -0.1)]),
    )
    asked = request_of(stream=True, sampling_parameters=b'{"logprobs": 2}')
    first, last = [json.loads(r.outputs()["logprobs"]) for r in replies_to(asked, *deltas).responses]
    assert list(first[0]) == ["7", "4", "5"]
    assert first[0]["7"] == {"logprob": -3.0, "rank": None, "decoded_token": "c"}
    assert (first[0]["4"]["rank"], first[0]["5"]["logprob"]) == (1, -9999.0)
    assert first[1] == {"4": {"logprob": -0.5, "rank": 1, "decoded_token": "a"}}
    assert [list(step) for step in last] == [["2"]]

    flagged = request_of(return_logprobs=True)
    assert read_generate(flagged, 0.0).sampling.logprobs == 0
    assert "logprobs" in replies_to(flagged, *deltas).responses[0].outputs()
    assert "logprobs" not in replies_to(request_of(), *deltas).responses[0].outputs()


def test_cached_tokens_are_told_when_asked_for():
    """The first delta knows them; a later one may not."""
    request = request_of(stream=True, return_num_cached_tokens=True)
    deltas = (
        Delta(0, "a", 1, num_input_tokens=40, num_cached_tokens=32),
        Delta(0, "b", 1, finish_reason="stop"),
    )
    outputs = [response.outputs() for response in replies_to(request, *deltas).responses]
    assert [output["num_cached_tokens"] for output in outputs] == [32, 32]
    assert "num_cached_tokens" not in replies_to(request_of(), *deltas).responses[0].outputs()


@pytest.mark.parametrize(
    ("parameters", "timeout_us", "deadline_unix_s"),
    [
        pytest.param({}, 0, None, id="none"),
        pytest.param({"deadline_unix_ms": 2500}, 0, 2.5, id="absolute, milliseconds"),
        pytest.param({}, 500_000, 10.5, id="Triton's timeout, microseconds from now"),
        pytest.param({"deadline_unix_ms": 2500}, 500_000, 2.5, id="the absolute one wins"),
    ],
)
def test_a_deadline_comes_from_our_parameter_or_tritons(parameters, timeout_us, deadline_unix_s):
    """Now is 10.0."""
    request = FakeRequest({"text_input": b"hi"}, json.dumps(parameters), timeout_us)
    assert read_generate(request, 10.0).deadline_unix_s == deadline_unix_s


def test_the_rows_of_a_batch_request_are_its_texts():
    """[3, 1] -> three texts."""
    request = FakeRequest({"text_input": [b"a", "ü".encode(), b"c"]})
    assert read_texts(request) == ["a", "ü", "c"]


def test_a_batch_request_of_no_rows_is_refused():
    """Shape [0, 1]."""
    request = FakeRequest({"text_input": np.empty((0, 1), dtype=np.object_)})
    with pytest.raises(InvalidRequest, match="empty"):
        read_texts(request)


def test_a_streamed_answer_is_one_response_a_delta_and_one_final_flag():
    """Counts are those since the last response; empty text waits for the next."""
    request = request_of(stream=True, return_num_output_tokens=True, return_num_input_tokens=True)
    sender = replies_to(
        request,
        Delta(0, "The", 1, num_input_tokens=5),
        Delta(0, "", 1),
        Delta(0, " sea", 1),
        Delta(0, ".", 1, num_input_tokens=5, finish_reason="stop"),
    )

    outputs = [response.outputs() for response in sender.responses]
    assert [output["text_output"] for output in outputs] == ["The", " sea", "."]
    assert [output["num_output_tokens"] for output in outputs] == [1, 2, 1]
    assert [output["num_input_tokens"] for output in outputs] == [5, 5, 5]
    assert sender.num_finals == 1


def test_an_answer_that_is_not_streamed_is_one_response_with_the_prompt_in_front():
    """As Triton's vLLM backend answers; without it when excluded."""
    deltas = (Delta(0, " the", 1, num_input_tokens=1), Delta(0, " sea", 1, finish_reason="length"))

    with_prompt = replies_to(request_of(return_finish_reason=True), *deltas)
    without = replies_to(request_of(exclude_input_in_output=True), *deltas)
    assert [r.outputs() for r in with_prompt.responses] == [
        {"text_output": "hi the sea", "finish_reason": "length"}
    ]
    assert [r.outputs() for r in without.responses] == [{"text_output": " the sea"}]


def test_an_error_is_the_final_response_and_its_text_begins_with_its_class():
    """The gateway maps it by that word."""
    sender = replies_to(
        request_of(stream=True), Delta(0, "", 0, error_code="UNAVAILABLE", error="no block is free")
    )

    assert sender.num_finals == 1
    assert sender.responses[0].error.text == "unavailable: no block is free"
    assert sender.responses[0].error.code == "UNAVAILABLE"


def test_after_the_final_flag_nothing_is_sent_and_nothing_is_asked():
    """Asking Triton whether a finished request was cancelled crashed the server."""
    sender = FakeSender()
    reply = Reply(sender)
    reply.fail(triton_error("INTERNAL", "x"))

    sender.cancelled = True
    reply.fail(triton_error("INTERNAL", "y"))
    assert reply.is_cancelled is False
    assert len(sender.responses) == 1


def test_a_request_that_asks_for_its_timing_gets_it_with_its_last_response():
    """By a parameter, so that a client's tensors stay as they are."""
    phase = PhaseFigures(1, 2, 1.0, 1, 1)
    timing = Timing(1.0, 2.0, 3.0, 4.0, 0, 0, 0, 1, phase, phase)
    deltas = Delta(1, "a", 1), Delta(1, "b", 1, finish_reason="stop", timing=timing)
    asked = FakeRequest({"text_input": b"hi", "stream": True}, json.dumps({"return_timing": True}))
    first, last = (response.outputs() for response in replies_to(asked, *deltas).responses)

    assert "timing" not in first
    assert decode_timing(last["timing"].encode()) == timing
    assert all("timing" not in each.outputs() for each in replies_to(request_of(), *deltas).responses)


@pytest.mark.parametrize("raw", [b"", b"{", b"[1]"])
def test_what_is_no_timing_is_a_value_error(raw):
    """The gateway takes it for an answer that can't be read."""
    with pytest.raises(ValueError, match="no timing"):
        decode_timing(raw)
