"""The sampling_parameters tensor: what is refused, and in which words."""

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts import guide
from contracts.guide import ANY_OBJECT, Guide
from contracts.sampling import (
    SamplingError,
    SamplingParams,
    check_sampling,
    parse_sampling,
    sampling_values,
)

KEYS = [name for name in SamplingParams.__struct_fields__ if name != "guide"]
KEYS += ["n", "best_of", "prompt_logprobs", "guided_lenient", *guide.KEYS]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"temperature": "hot"}, ["temperature", '"hot"', "from 0 to 2"]),
        ({"temperature": -1}, ["temperature", "-1", "from 0 to 2"]),
        ({"temperature": True}, ["temperature", "true"]),
        ({"top_p": 0}, ["top_p", "0", "above 0 and at most 1"]),
        ({"top_p": 1.5}, ["top_p", "1.5"]),
        ({"top_k": -3}, ["top_k", "-3"]),
        ({"max_tokens": 0}, ["max_tokens", "0", "from 1"]),
        ({"max_tokens": 1e12}, ["max_tokens", "1000000000000"]),
        ({"max_tokens": 3.5}, ["max_tokens", "3.5"]),
        ({"stop": [""]}, ["stop", "0 characters"]),
        ({"stop": ["x"] * 10_000}, ["stop", "10000", "at most 16"]),
        ({"stop": 7}, ["stop", "7"]),
        ({"seed": 2**70}, ["seed"]),
        ({"n": 0}, ["n = 0"]),
        ({"n": 2}, ["n = 2"]),
        ({"temprature": 0.5}, ["temprature", "did you mean 'temperature'"]),
        ({"logit_bias": {"999999999": 5}}, ["logit_bias", "999999999", "0 to 16777215"]),
        ({"logit_bias": {"-1": 5}}, ["logit_bias", '"-1"']),
        ({"logit_bias": {"٣": 5}}, ["logit_bias", "token id"]),
        ({"logit_bias": {"1": 101}}, ["logit_bias", "101", "-100 to 100"]),
        ({"logit_bias": {"1": True}}, ["logit_bias", "true"]),
        ({"logit_bias": [1]}, ["logit_bias", "[1]"]),
        ({"logit_bias": {str(at): 1 for at in range(301)}}, ["logit_bias", "301", "at most 300"]),
        ({"presence_penalty": 2.5}, ["presence_penalty", "2.5", "-2 to 2"]),
        ({"frequency_penalty": -3}, ["frequency_penalty", "-3", "-2 to 2"]),
        ({"repetition_penalty": 0}, ["repetition_penalty", "0", "above 0"]),
        ({"min_p": 1.5}, ["min_p", "1.5", "from 0 to 1"]),
        ({"min_tokens": -1}, ["min_tokens", "-1"]),
        ({"stop_token_ids": [1.5]}, ["stop_token_ids", "1.5"]),
        ({"stop_token_ids": [-1]}, ["stop_token_ids", "-1"]),
        ({"stop_token_ids": list(range(65))}, ["stop_token_ids", "at most 64"]),
        ({"logprobs": 21}, ["logprobs", "21", "0 to 20"]),
        ({"logprobs": True}, ["logprobs", "true"]),
        ({"prompt_logprobs": 1}, ["prompt_logprobs", "not supported"]),
        ({"best_of": 2}, ["best_of", "not supported"]),
        ({"guided_json": False}, ["guided_json", "JSON schema"]),
        ({"guided_json": "{"}, ["guided_json", "no valid JSON"]),
        ({"guided_json": {"enum": ["x" * 40_000]}}, ["guided_json", "40013", "at most 32768"]),
        ({"guided_regex": ""}, ["guided_regex", "not empty"]),
        ({"guided_grammar": ["start: x"]}, ["guided_grammar"]),
        ({"guided_choice": []}, ["guided_choice", "1 to 512"]),
        ({"guided_choice": ["a", ""]}, ["guided_choice", "not empty"]),
        ({"guided_choice": ["a"], "guided_regex": "a"}, ["guided_regex", "guided_choice", "only one"]),
        ({"guided_json": {}, "guided_lenient": 1}, ["guided_lenient", "true or false"]),
        ({"ignore_eos": "yes"}, ["ignore_eos", "true or false"]),
    ],
    ids=lambda value: json.dumps(value)[:40] if isinstance(value, dict) else "",
)
def test_a_bad_setting_is_refused_with_key_value_and_range(values, words):
    """One bad setting each, as in shared/cases/sampling_bad.json."""
    with pytest.raises(SamplingError) as refused:
        parse_sampling(json.dumps(values))
    assert all(word in str(refused.value) for word in words), str(refused.value)


@pytest.mark.parametrize("raw", ["{", "[" * 10_000, "[]", "7", '{"temperature": NaN}', '{"a": "\\ud800"}'])
def test_what_is_no_json_object_is_refused(raw):
    """Truncated, deeply nested, another type, NaN, a lone surrogate."""
    with pytest.raises(SamplingError):
        parse_sampling(raw)


def test_null_means_the_default():
    """For every key."""
    assert parse_sampling(json.dumps(dict.fromkeys(KEYS))) == SamplingParams()


def test_neutral_values_of_unsupported_settings_pass():
    """Clients send the defaults of what they never use."""
    assert parse_sampling('{"frequency_penalty": 0.0, "logit_bias": {}, "best_of": 1}') == SamplingParams()


def test_a_guide_is_taken_in_each_of_its_forms():
    """A schema as an object or as text, and three ways to say "any object"."""
    schema = Guide("json", '{"type":"string"}')
    assert parse_sampling('{"guided_json": {"type": "string"}}').guide == schema
    assert parse_sampling(json.dumps({"guided_json": '{"type": "string"}'})).guide == schema
    for any_object in (True, {}, "{}", "true"):
        guide = check_sampling({"guided_json": any_object}).guide
        assert guide == Guide("json", ANY_OBJECT)
    assert check_sampling({"guided_choice": ["a", "é"]}).guide == Guide("choice", '["a","é"]')
    assert check_sampling({"guided_regex": "a+"}).guide == Guide("regex", "a+")
    assert check_sampling({"guided_grammar": "start: A"}).guide == Guide("grammar", "start: A")
    assert check_sampling({"guided_json": {"type": "string"}, "guided_lenient": True}).guide.is_lenient


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
ODD = st.dictionaries(st.sampled_from(KEYS), JSON, max_size=4)
LIKELY = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.floats(0, 2),
        "min_p": st.floats(0, 1),
        "presence_penalty": st.floats(-2, 2),
        "repetition_penalty": st.floats(0.1, 5),
        "min_tokens": st.integers(0, 50),
        "stop": st.lists(st.text(min_size=1, max_size=9), max_size=3),
        "stop_token_ids": st.lists(st.integers(0, 9999), max_size=5),
        "logit_bias": st.dictionaries(st.integers(0, 9999).map(str), st.floats(-100, 100), max_size=5),
        "logprobs": st.integers(0, 20),
        "seed": st.integers(-(2**63), 2**63 - 1),
        "guided_choice": st.lists(st.text(min_size=1, max_size=9), min_size=1, max_size=4),
    },
)


@settings(max_examples=200, deadline=None)
@given(ODD | LIKELY)
def test_any_settings_are_taken_or_refused_and_what_is_taken_survives_every_wire(values):
    """JSON as the gateway writes it and msgpack as the bridge does; refusals are SamplingErrors, never others."""
    try:
        taken = check_sampling(values)
    except SamplingError:
        return
    assert parse_sampling(msgspec.json.encode(sampling_values(taken))) == taken
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(taken), type=SamplingParams) == taken


def test_an_error_text_does_not_carry_a_large_value_back():
    """A megabyte of text in a wrong place."""
    with pytest.raises(SamplingError) as refused:
        parse_sampling(json.dumps({"temperature": "x" * 1_000_000}))
    assert len(str(refused.value)) < 200
