"""Prompts begin once."""

import pytest

from contracts.prompts import without_double_start

START, END = 1, 2


@pytest.mark.parametrize(
    ("ids", "added", "expected"),
    [
        pytest.param([START, START, 5], [START], [START, 5], id="tokenizer and template"),
        pytest.param([START, 5, START], [START], [START, 5, START], id="once"),
        pytest.param([START, START, START], [START], [START, START], id="only the tokenizer's goes"),
        pytest.param([START, START, 5, END], [START, END], [START, 5, END], id="a tokenizer that ends them too"),
        pytest.param([5, 5, END], [END], [5, 5, END], id="a tokenizer that only ends them"),
        pytest.param([5, 5], [], [5, 5], id="a tokenizer that adds nothing"),
        pytest.param([START], [START], [START], id="nothing but the start"),
        pytest.param([], [], [], id="nothing"),
    ],
)  # fmt: skip
def test_one_start_is_left_where_there_are_two(ids, added, expected):
    """`added` is what the tokenizer makes of the empty text."""
    assert without_double_start(ids, added) == expected
