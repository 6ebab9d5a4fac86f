"""The sampling_parameters tensor: what is refused, and in which words."""

import json

import pytest

from contracts.sampling import SamplingError, SamplingParams, parse_sampling


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
        ({"logit_bias": {"999999999": 5}}, ["logit_bias", "not supported"]),
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
    names = ["max_tokens", "temperature", "top_p", "top_k", "seed", "stop", "ignore_eos", "n"]
    assert parse_sampling(json.dumps(dict.fromkeys(names))) == SamplingParams()


def test_neutral_values_of_unsupported_settings_pass():
    """Clients send the defaults of what they never use."""
    assert parse_sampling('{"frequency_penalty": 0.0, "logit_bias": {}, "best_of": 1}') == SamplingParams()


def test_an_error_text_does_not_carry_a_large_value_back():
    """A megabyte of text in a wrong place."""
    with pytest.raises(SamplingError) as refused:
        parse_sampling(json.dumps({"temperature": "x" * 1_000_000}))
    assert len(str(refused.value)) < 200
