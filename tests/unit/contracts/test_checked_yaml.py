"""YAML from operators: whatever it says, it is read or refused in words, and at once."""

import pytest

from contracts.checked_yaml import MAX_VALUES, allowed_range, load_yaml


def test_aliases_to_aliases_are_not_written_out() -> None:
    """9 lines that stand for 9^9 values held the scaler's loop for two minutes; now they are counted first."""
    lines = ["a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [
        f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]"
        for old, new in zip("abcdefgh", "bcdefghi", strict=True)
    ]
    with pytest.raises(ValueError, match=f"at most {MAX_VALUES:,} are read"):
        load_yaml("\n".join(lines))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 3000, "nested too deep"),
        ("a: &x [*x]", "nested too deep"),
        ("? [a]\n: 1", "a key has to be a word"),
        ("? {a: 1}\n: 1", "a key has to be a word"),
    ],
)
def test_what_made_other_errors_than_value_error_is_refused(text: str, words: str) -> None:
    """A RecursionError or TypeError ended the task that follows routes.yaml, without a word."""
    with pytest.raises(ValueError, match=words):
        load_yaml(text)


def test_an_alias_used_twice_is_fine() -> None:
    """Two models over one set of values: what aliases are for."""
    assert load_yaml("a: &x {n: 1}\nb: *x") == {"a": {"n": 1}, "b": {"n": 1}}


def test_an_empty_text_is_none() -> None:
    """0 bytes, or nothing but comments."""
    assert load_yaml("") is None
    assert load_yaml("# nothing\n") is None


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ({"minimum": 0, "maximum": 1}, "from 0 to 1"),
        ({"exclusiveMinimum": 0, "maximum": 1}, "above 0 and at most 1"),
        ({"minimum": 0, "exclusiveMaximum": 1}, "from 0 and below 1"),
        ({"minimum": 1, "type": "integer"}, "a whole number from 1"),
        ({"anyOf": [{"minimum": 1, "maximum": 9}, {"type": "null"}]}, "from 1 to 9"),
        ({"type": "string"}, ""),
    ],
)
def test_a_range_is_said_as_far_as_it_goes(bounds: dict[str, object], words: str):
    """Both ends, in or out, or one; a text has none."""
    assert allowed_range(bounds) == words
