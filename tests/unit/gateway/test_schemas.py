"""Bodies that clients send, and what becomes of them. The odd ones are those of ../shared/cases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from contracts.guide import Guide
from contracts.sampling import parse_sampling
from gateway.errors import GatewayError, InvalidRequest, UnsupportedFeature
from gateway.schemas import MAX_EMBED_INPUTS, parse_chat, parse_completion, parse_embedding
from gateway.translate import sampling_json

CASES = Path(__file__).resolve().parents[4] / "shared" / "cases"
HELLO = [{"role": "user", "content": "hi"}]


def chat(**values: Any) -> bytes:
    return json.dumps({"model": "chat", "messages": HELLO} | values).encode()


def completion(**values: Any) -> bytes:
    return json.dumps({"model": "chat", "prompt": "hi"} | values).encode()


def embedding(**values: Any) -> bytes:
    return json.dumps({"model": "embed", "input": "hi"} | values).encode()


def refusal(parse: Any, raw: bytes) -> GatewayError:
    with pytest.raises(InvalidRequest) as caught:
        parse(raw)
    return caught.value


def test_a_plain_chat_takes_openais_defaults() -> None:
    """Temperature 1, no limit of tokens but the context's, no stream."""
    body = parse_chat(chat())
    assert body.messages == [{"role": "user", "content": "hi"}]
    assert (body.sampling.temperature, body.sampling.top_p, body.max_tokens) == (1.0, 1.0, None)
    assert not body.is_stream
    assert not body.include_usage


def test_sampling_settings_arrive() -> None:
    """Each by its own name, vLLM's top_k and ignore_eos too."""
    body = parse_chat(
        chat(temperature=0, top_p=0.5, top_k=7, seed=3, stop="x", ignore_eos=True, max_completion_tokens=9)
    )
    assert (body.sampling.temperature, body.sampling.top_p, body.sampling.top_k) == (0.0, 0.5, 7)
    assert (body.sampling.seed, body.sampling.stop, body.sampling.ignore_eos) == (3, ("x",), True)
    assert body.max_tokens == 9


def test_text_parts_become_one_text() -> None:
    """Content as a list of text parts is what many clients send."""
    parts = [{"type": "text", "text": "hi"}, {"type": "text", "text": "there"}]
    assert (
        parse_chat(chat(messages=[{"role": "user", "content": parts}])).messages[0]["content"] == "hi\nthere"
    )


def test_a_developer_message_is_a_system_message() -> None:
    """Templates know no other name for it."""
    body = parse_chat(chat(messages=[{"role": "developer", "content": "be short"}, *HELLO]))
    assert body.messages[0]["role"] == "system"


def test_an_answers_message_can_be_sent_back() -> None:
    """With the empty fields that the openai client leaves in it."""
    answer = {"role": "assistant", "content": "yes", "refusal": None, "tool_calls": None, "annotations": []}
    assert parse_chat(chat(messages=[*HELLO, answer])).messages[1] == {"role": "assistant", "content": "yes"}


def test_what_changes_nothing_is_ignored() -> None:
    """user and metadata, as OpenAI does; unsupported features at the value that asks for nothing."""
    parse_chat(
        chat(user="u", metadata={"a": "b"}, store=True, n=1, tools=[], logprobs=False, presence_penalty=0.0)
    )
    parse_completion(completion(echo=False, best_of=1, suffix=None, logprobs=None))
    parse_embedding(embedding(dimensions=None, user="u"))


def test_null_stands_for_the_default() -> None:
    """As `max_tokens: null` in sampling_bad.json."""
    body = parse_chat(chat(max_tokens=None, temperature=None, stop=None, stream=None, stream_options=None))
    assert body.max_tokens is None
    assert parse_completion(completion(max_tokens=None)).max_tokens == 16


def test_several_answers_may_be_asked_for() -> None:
    """n up to 32, for all prompts together."""
    assert parse_chat(chat()).num_choices == 1
    assert parse_chat(chat(n=32)).num_choices == 32
    assert parse_completion(completion(n=4, prompt=["a"] * 8, stream=True)).num_choices == 4
    for value in (0, 33, True, 1.5, "2"):
        assert refusal(parse_chat, chat(n=value)).param == "n"
    assert (
        "from 1 to 4 with 8 prompts" in refusal(parse_completion, completion(n=5, prompt=["a"] * 8)).message
    )


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ("hi", "messages"),
        (None, "messages"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": []}], "messages[0].content"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": ["hi"]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "wizard", "content": "x"}], "messages[0].role"),
        ([{"content": "x"}], "messages[0].role"),
        ([*HELLO, "hi"], "messages[1]"),
        ([*HELLO, {"role": 1, "content": "x"}], "messages[1].role"),
    ],
)
def test_a_wrong_message_is_named(messages: Any, param: str) -> None:
    """400 says where in the body the mistake is."""
    error = refusal(parse_chat, chat(messages=messages))
    assert error.param == param
    assert param in error.message


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]},
        {"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]},
        {"role": "tool", "content": "x", "tool_call_id": "1"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
    ],
)
def test_unsupported_parts_and_roles_are_refused_by_name(message: dict[str, Any]) -> None:
    """An image that is left out silently would look like a model that can't see."""
    assert isinstance(refusal(parse_chat, chat(messages=[message])), UnsupportedFeature)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("tool_choice", "auto"),
        ("best_of", 2),
        ("audio", {"voice": "alloy"}),
        ("modalities", ["audio"]),
    ],
)
def test_an_unsupported_feature_is_refused_by_name(key: str, value: Any) -> None:
    """Never ignored (triton-practice F2)."""
    error = refusal(parse_chat, chat(**{key: value}))
    assert isinstance(error, UnsupportedFeature)
    assert error.param == key


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("echo", True),
        ("suffix", "end"),
        ("best_of", 3),
        ("prompt", [1, 2]),
        ("prompt", [[1, 2]]),
    ],
)
def test_an_unsupported_completion_is_refused_by_name(key: str, value: Any) -> None:
    """Token ids too: text only."""
    error = refusal(parse_completion, completion(**{key: value}))
    assert isinstance(error, UnsupportedFeature)
    assert error.param == key


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("temperature", "hot"),
        ("temperature", -1),
        ("top_p", 0),
        ("top_p", 1.5),
        ("top_k", -3),
        ("max_tokens", 0),
        ("max_tokens", 1e12),
        ("max_tokens", 3.5),
        ("max_completion_tokens", 0),
        ("stop", [""]),
        ("stop", ["x"] * 17),
        ("seed", 2**70),
        ("ignore_eos", "yes"),
        ("frequency_penalty", 2.5),
        ("presence_penalty", "high"),
        ("repetition_penalty", 0),
        ("min_p", 2),
        ("min_tokens", -1),
        ("stop_token_ids", 5),
        ("logit_bias", {"999999999": 5}),
        ("logit_bias", {"5": 101}),
        ("logprobs", 1),
        ("top_logprobs", 3),
        ("top_logprobs", 21),
        ("top_logprobs", True),
        ("guided_json", 5),
        ("guided_choice", []),
        ("response_format", "json"),
        ("response_format", {}),
        ("response_format", {"type": "yaml"}),
        ("response_format", {"type": "json_schema"}),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "x"}}),
        ("response_format", {"type": "json_schema", "json_schema": {"schema": {}, "strict": 1}}),
        ("response_format", {"type": "json_schema", "json_schema": {"schema": {"enum": ["x" * 40_000]}}}),
        ("stream", "yes"),
        ("stream", 1),
        ("stream_options", {"include_usage": "yes"}),
        ("model", 5),
        ("model", None),
    ],
)
def test_a_wrong_value_is_named(key: str, value: Any) -> None:
    """400 with key, value and range."""
    error = refusal(parse_chat, chat(**{"stream": True, key: value}))
    assert (error.param or "").split(".")[0] == key
    assert key in error.message


def test_output_settings_reach_the_sampling_parameters() -> None:
    """OpenAI's and vLLM's, for chat and completions alike."""
    settings = {
        "presence_penalty": 0.5, "frequency_penalty": -1, "repetition_penalty": 1.2, "min_p": 0.1, "min_tokens": 20,
        "stop_token_ids": [7], "logit_bias": {"5": -100}, "guided_choice": ["a", "b"],
    }  # fmt: skip
    for sampling in (
        parse_chat(chat(**settings)).sampling,
        parse_completion(completion(**settings)).sampling,
    ):
        assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.5, -1.0)
        assert (sampling.repetition_penalty, sampling.min_p, sampling.min_tokens) == (1.2, 0.1, 20)
        assert (sampling.stop_token_ids, sampling.logit_bias) == ((7,), ((5, -100.0),))
        assert sampling.guide == Guide("choice", '["a","b"]')


def test_log_probabilities_are_asked_for_in_each_routes_own_way() -> None:
    """Chat: a switch and a count. Completions: a count."""
    assert parse_chat(chat()).sampling.logprobs is None
    assert parse_chat(chat(logprobs=False, top_logprobs=0)).sampling.logprobs is None
    assert parse_chat(chat(logprobs=True)).sampling.logprobs == 0
    assert parse_chat(chat(logprobs=True, top_logprobs=5)).sampling.logprobs == 5
    assert parse_completion(completion(logprobs=0)).sampling.logprobs == 0
    assert parse_completion(completion(logprobs=3)).sampling.logprobs == 3
    assert refusal(parse_completion, completion(logprobs=True)).param == "logprobs"
    assert refusal(parse_completion, completion(logprobs=21)).param == "logprobs"


def test_a_response_format_is_a_guide() -> None:
    """Any object, or a schema: strict, it is enforced whole or refused; otherwise as far as possible."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}

    def guide(response_format: Any) -> Guide | None:
        return parse_chat(chat(response_format=response_format)).sampling.guide

    assert guide({"type": "text"}) is None
    assert guide({"type": "json_object"}) == Guide("json", '{"type":"object"}')
    for strict, is_lenient in ((True, False), (False, True), (None, True)):
        found = guide(
            {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": strict}}
        )
        assert found is not None
        assert (json.loads(found.text), found.is_lenient) == (schema, is_lenient)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "json_schema", "schema", "strict", "1", "x"]), inner, max_size=4
        )
    ),
    max_leaves=8,
)
OUTPUT_KEYS = (
    "logprobs", "top_logprobs", "response_format", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "min_p", "min_tokens", "stop_token_ids", "logit_bias", "guided_json", "guided_regex", "guided_grammar",
    "guided_choice", "guided_lenient", "stop", "seed", "max_tokens",
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(OUTPUT_KEYS), JSON, max_size=4))
def test_any_output_settings_are_taken_or_refused_by_name(values: dict[str, Any]) -> None:
    """Never an exception of another kind; what is taken is JSON that the bridge takes."""
    for parse, body in ((parse_chat, chat(**values)), (parse_completion, completion(**values))):
        try:
            taken = parse(body)
        except InvalidRequest as exc:
            note(exc.message)
            continue
        assert parse_sampling(sampling_json(taken.sampling, 5)).guide == taken.sampling.guide


def test_two_guides_are_refused() -> None:
    """One answer can follow only one."""
    error = refusal(parse_chat, chat(response_format={"type": "json_object"}, guided_regex="a"))
    assert error.param == "response_format"
    assert refusal(parse_chat, chat(guided_json={}, guided_regex="a")).param == "guided_json"


def test_an_unknown_key_names_the_nearest_known_one() -> None:
    """A misspelt setting would otherwise be a default nobody asked for."""
    error = refusal(parse_chat, chat(temprature=0.5))
    assert error.param == "temprature"
    assert "did you mean 'temperature'" in error.message


def test_two_limits_of_tokens_are_refused() -> None:
    """As OpenAI does."""
    assert refusal(parse_chat, chat(max_tokens=1, max_completion_tokens=2)).param == "max_tokens"


def test_stream_options_need_a_stream() -> None:
    """As OpenAI does; with a stream they ask for the usage event."""
    assert refusal(parse_chat, chat(stream_options={"include_usage": True})).param == "stream_options"
    assert parse_chat(chat(stream=True, stream_options={"include_usage": True})).include_usage


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "no valid JSON"),
        (b"[" * 10_000, "nested too deep"),
        (b'{"model":"chat","messages":[{"role":"user","content":"Hel', "no valid JSON"),
        (b'{"temperature": NaN}', "no valid JSON"),
        (b'{"temperature": 1e999}', "no valid JSON"),
        (b'{"model":"chat","prompt":"\\ud800"}', "no valid JSON"),
        (b'"hi"', "must be a JSON object, got a string"),
        (b"\xff\xfe\x80\x00\xc3\x28", "not UTF-8: invalid start byte at byte 0"),
        (b'{"model":"\xc3\x28"}', "not UTF-8: invalid continuation byte at byte 10"),
        (b"{}", "missing"),
    ],
)
@pytest.mark.parametrize("parse", [parse_chat, parse_completion, parse_embedding])
def test_a_broken_body_is_400(parse: Any, raw: bytes, says: str) -> None:
    """Never 500 (triton-practice D13)."""
    error = refusal(parse, raw)
    assert error.status == 400
    assert says in error.message


@pytest.mark.parametrize("value", ["", [], [""], ["a", ""], None, 5, {"a": 1}, ["a", None]])
def test_a_prompt_that_is_no_text_is_400(value: Any) -> None:
    """For completions and embeddings alike."""
    assert (refusal(parse_completion, completion(prompt=value)).param or "").startswith("prompt")
    assert (refusal(parse_embedding, embedding(input=value)).param or "").startswith("input")


def test_several_prompts_are_one_answer() -> None:
    """Streamed too: their events take turns."""
    assert parse_completion(completion(prompt=["a", "b"])).prompts == ["a", "b"]
    assert parse_completion(completion(prompt=["a", "b"], stream=True)).is_stream


def test_embeddings_take_many_texts_up_to_openais_limit() -> None:
    """2,048 of them."""
    assert len(parse_embedding(embedding(input=["a"] * MAX_EMBED_INPUTS)).texts) == MAX_EMBED_INPUTS
    assert "2049" in refusal(parse_embedding, embedding(input=["a"] * (MAX_EMBED_INPUTS + 1))).message


def test_embeddings_name_their_encodings() -> None:
    """The openai client asks for base64."""
    assert parse_embedding(embedding(encoding_format="base64")).is_base64
    assert not parse_embedding(embedding(encoding_format="float")).is_base64
    assert "float, base64" in refusal(parse_embedding, embedding(encoding_format="hex")).message
    assert isinstance(refusal(parse_embedding, embedding(dimensions=8)), UnsupportedFeature)


def test_an_error_carries_no_megabytes_back() -> None:
    """The value is shown, cut."""
    assert len(refusal(parse_chat, chat(stop=["x" * 100_000])).message) < 300
    assert len(refusal(parse_chat, chat(**{"k" * 100_000: 1})).message) < 300


@pytest.mark.skipif(
    not CASES.exists(), reason=f"no shared cases at {CASES}; the same ones are written out above"
)
def test_the_shared_cases_end_as_their_readme_says() -> None:
    """Nine odd bodies and the bad sampling settings."""
    odd = json.loads((CASES / "openai_odd.json").read_text())
    outcomes = []
    for case in odd:
        stream = {"stream": True} if "stream_options" in case else {}
        try:
            parse_chat(json.dumps({"model": "chat"} | case | stream).encode())
            outcomes.append("taken")
        except InvalidRequest as exc:
            outcomes.append(exc.param)
    assert outcomes[:4] == ["messages", "messages[0].content", "messages[0].role", "taken"]
    assert outcomes[4:] == ["messages", "taken", "stream", "tools", "taken"]
    *bad, null_max_tokens = json.loads((CASES / "sampling_bad.json").read_text())
    for case in bad:
        (key,) = case
        assert refusal(parse_chat, chat(**case)).param == key
    parse_chat(chat(**null_max_tokens))
    for name in ("deep.json", "truncated.json", "nan.json", "bytes_ff.bin"):
        assert refusal(parse_chat, (CASES / name).read_bytes()).status == 400
