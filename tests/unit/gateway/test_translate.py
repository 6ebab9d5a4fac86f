"""OpenAI's shapes, as its own client's types read them."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import msgspec
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from contracts.guide import Guide
from contracts.sampling import SamplingParams, parse_sampling
from gateway import translate
from gateway.errors import UpstreamFailed, UpstreamUnavailable
from gateway.logprobs import TokenLogprob, read_logprobs


def data_of(event: bytes) -> dict[str, Any]:
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    values: dict[str, Any] = json.loads(event[6:])
    return values


def test_sampling_settings_come_back_from_their_json() -> None:
    """What the gateway writes the bridge reads as the same."""
    wanted = SamplingParams(
        temperature=0.5,
        seed=7,
        stop=("a", "🙂"),
        logit_bias=((5, -1.5),),
        stop_token_ids=(3,),
        logprobs=0,
        guide=Guide("json", '{"type":"string"}', is_lenient=True),
    )
    read = parse_sampling(translate.sampling_json(wanted, 33))
    assert read == msgspec.structs.replace(wanted, max_tokens=33)
    assert parse_sampling(translate.sampling_json(SamplingParams(), 5)) == SamplingParams(max_tokens=5)


def test_chat_events_are_openais() -> None:
    """Role first, then text, then the reason with an empty delta; finish_reason is null until then."""
    chunks = translate.ChatChunks("chatcmpl-1", 5, "chat", include_usage=False)
    start, text, finish = (
        data_of(event) for event in (chunks.start(), chunks.text(0, "hé"), chunks.finish(0, "length"))
    )
    assert start["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert text["choices"][0] == {
        "index": 0,
        "delta": {"content": "hé"},
        "logprobs": None,
        "finish_reason": None,
    }
    assert finish["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "length"}
    assert "usage" not in text
    assert ChatCompletionChunk.model_validate(text).object == "chat.completion.chunk"


def test_usage_comes_in_an_event_without_choices() -> None:
    """And is null in all before it."""
    chunks = translate.ChatChunks("chatcmpl-1", 5, "chat", include_usage=True)
    assert data_of(chunks.text(0, "x"))["usage"] is None
    last = data_of(chunks.usage(translate.usage(3, 4, 2)))
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 2},
    }


def test_completion_events_are_openais() -> None:
    """Text in the choice itself, no event for a role."""
    chunks = translate.CompletionChunks("cmpl-1", 5, "chat", include_usage=False)
    assert chunks.start() == b""
    assert data_of(chunks.text(0, "x"))["choices"] == [
        {"index": 0, "text": "x", "logprobs": None, "finish_reason": None}
    ]
    assert data_of(chunks.finish(0, "stop"))["choices"][0]["finish_reason"] == "stop"


PARIS = TokenLogprob(" Paris", -0.1, ((" Paris", -0.1), (" Lyon", -2.5)))
HALF = TokenLogprob("\ufffd", -3.0, ((".", -0.5),))


def test_chat_chunks_carry_log_probabilities() -> None:
    """With the token's bytes, which half a character has none of."""
    chunks = translate.ChatChunks("chatcmpl-1", 5, "chat", include_usage=False)
    found = data_of(chunks.text(0, " Paris", [PARIS, HALF]))["choices"][0]["logprobs"]
    first, second = found["content"]
    assert (first["token"], first["logprob"], bytes(first["bytes"])) == (" Paris", -0.1, b" Paris")
    assert [entry["token"] for entry in first["top_logprobs"]] == [" Paris", " Lyon"]
    assert second["bytes"] is None
    assert data_of(chunks.text(0, "x"))["choices"][0]["logprobs"] is None


def test_completion_chunks_carry_log_probabilities_in_the_classic_shape() -> None:
    """Parallel lists; offsets count on from chunk to chunk; the chosen token is among its alternatives."""
    chunks = translate.CompletionChunks("cmpl-1", 5, "chat", include_usage=False)
    first = data_of(chunks.text(0, " Paris", [PARIS]))["choices"][0]["logprobs"]
    second = data_of(chunks.text(0, "", [HALF]))["choices"][0]["logprobs"]
    assert first == {
        "text_offset": [0],
        "token_logprobs": [-0.1],
        "tokens": [" Paris"],
        "top_logprobs": [{" Paris": -0.1, " Lyon": -2.5}],
    }
    third = data_of(chunks.text(0, "", [PARIS, PARIS]))["choices"][0]["logprobs"]
    assert (second["text_offset"], third["text_offset"]) == ([6], [7, 13])
    assert second["top_logprobs"] == [{"\ufffd": -3.0, ".": -0.5}]


def test_log_probabilities_are_read_as_tritons_vllm_backend_writes_them() -> None:
    """The chosen token first, ranks by likelihood; one beyond those asked for has none."""
    raw = json.dumps(
        [
            {
                "7": {"logprob": -3.0, "rank": None, "decoded_token": "c"},
                "5": {"logprob": -1.0, "rank": 2, "decoded_token": "b"},
                "4": {"logprob": -0.5, "rank": 1, "decoded_token": "a"},
            }
        ]
    )
    assert read_logprobs(raw.encode()) == (TokenLogprob("c", -3.0, (("a", -0.5), ("b", -1.0))),)
    for broken in (b"[{}]", b"{}", b"[", b'[{"1": {"logprob": "x"}}]'):
        with pytest.raises(ValueError, match="log"):
            read_logprobs(broken)


def test_a_chat_answer_is_openais() -> None:
    """The client's own type takes it."""
    raw = translate.chat_answer("chatcmpl-1", 5, "chat", [("yes", "stop", None)], translate.usage(3, 4, 0))
    answer = ChatCompletion.model_validate_json(raw)
    assert answer.choices[0].message.content == "yes"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == 7


def test_several_answers_have_an_index_each() -> None:
    """n = 2: two choices whole; streamed, a role for each and each its own text and offsets."""
    outcomes = [("yes", "stop", None), ("no", "length", None)]
    raw = translate.chat_answer("chatcmpl-1", 5, "chat", outcomes, translate.usage(3, 4, 0))
    choices = ChatCompletion.model_validate_json(raw).choices
    assert [(one.index, one.message.content) for one in choices] == [(0, "yes"), (1, "no")]
    chunks = translate.ChatChunks("c", 5, "chat", include_usage=False, num_choices=2)
    roles = [data_of(part + b"\n\n") for part in chunks.start().split(b"\n\n") if part]
    assert [one["choices"][0]["index"] for one in roles] == [0, 1]
    plain = translate.CompletionChunks("c", 5, "chat", include_usage=False, num_choices=2)
    plain.text(0, " Paris", [PARIS])
    assert data_of(plain.text(1, " Paris", [PARIS]))["choices"][0]["logprobs"]["text_offset"] == [0]


def test_what_the_gateway_did_stands_in_the_last_event_alone() -> None:
    """The end of the last choice, or the usage where that comes after it; in a whole answer beside `usage`."""
    about = {"context": {"policy": "truncate"}}
    chunks = translate.ChatChunks("c", 5, "chat", include_usage=False, num_choices=2, about=about)
    assert "tidegate" not in data_of(chunks.finish(1, "stop", is_last=False))
    assert data_of(chunks.finish(0, "stop"))["tidegate"] == about
    chunks = translate.ChatChunks("c", 5, "chat", include_usage=True, about=about)
    assert "tidegate" not in data_of(chunks.finish(0, "stop"))
    assert data_of(chunks.usage(translate.usage(3, 4, 0)))["tidegate"] == about
    raw = translate.chat_answer("c", 5, "chat", [("yes", "stop", None)], translate.usage(3, 4, 0), about)
    assert json.loads(raw)["tidegate"] == about


@pytest.mark.parametrize("char", ["\n", "\r", "\u0085", "\u2028", "\u2029"])
def test_an_event_is_one_line_for_every_client(char: str) -> None:
    """Clients that split lines as Python's str does would cut the event at U+2028 (utf8_edges.txt)."""
    event = translate.ChatChunks("c", 5, "chat", include_usage=False).text(0, f"a{char}b")
    assert len(event.decode().splitlines()) == 2
    assert data_of(event)["choices"][0]["delta"]["content"] == f"a{char}b"


def test_an_error_event_has_openais_shape() -> None:
    """The client's library looks for `error`."""
    error = data_of(translate.error_event(UpstreamUnavailable("no worker")))["error"]
    assert error == {
        "message": "no worker",
        "type": "server_error",
        "param": None,
        "code": "upstream_unavailable",
    }


def test_embeddings_come_as_numbers_or_base64() -> None:
    """Both of the same four bytes a number."""
    raw = struct.pack("<2f", 0.25, -1.0)
    plain = json.loads(translate.embedding_answer("embed", [raw], 3, is_base64=False))
    assert plain["data"][0] == {"object": "embedding", "index": 0, "embedding": [0.25, -1.0]}
    assert plain["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
    packed = json.loads(translate.embedding_answer("embed", [raw], 3, is_base64=True))
    assert base64.b64decode(packed["data"][0]["embedding"]) == raw


@pytest.mark.parametrize("is_base64", [True, False])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_embedding_with_nan_is_an_error(value: float, is_base64: bool) -> None:
    """JSON has no NaN, and a null in a vector breaks the client far from here (triton-practice D4)."""
    with pytest.raises(UpstreamFailed, match="NaN"):
        translate.embedding_answer("embed", [struct.pack("<2f", 1.0, value)], 1, is_base64)
