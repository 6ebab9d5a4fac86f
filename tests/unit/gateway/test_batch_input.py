"""A batch's input file is checked whole, and what is wrong is told with its line."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway import batch_input
from gateway.batch_input import BatchInputInvalid, read_lines

CHAT = "/v1/chat/completions"


def line(custom_id: object = "a", **changes: Any) -> str:
    return json.dumps(
        {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": {"model": "chat"}} | changes
    )


def problems(*lines: str) -> list[tuple[str, int | None]]:
    with pytest.raises(BatchInputInvalid) as caught:
        read_lines("\n".join(lines).encode(), CHAT)
    return [(problem.code, problem.line) for problem in caught.value.problems]


def test_lines_are_numbered_and_empty_ones_are_none() -> None:
    """CRLF and an empty line at the end are how editors write."""
    found = read_lines(f"{line('a')}\r\n\r\n{line('b')}\n".encode(), CHAT)
    assert [(each.number, each.custom_id, each.body) for each in found] == [
        (0, "a", {"model": "chat"}),
        (1, "b", {"model": "chat"}),
    ]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{", "invalid_json_line"),
        ("[]", "invalid_json_line"),
        ("[" * 100_000, "invalid_json_line"),
        (line(7), "invalid_custom_id"),
        (line(""), "invalid_custom_id"),
        (line("x" * 257), "invalid_custom_id"),
        (line(method="GET"), "invalid_method"),
        (line(url="/v1/embeddings"), "mismatched_endpoint"),
        (line(body=[]), "invalid_body"),
        (line(body={"stream": True}), "invalid_body"),
    ],
)
def test_what_is_wrong_with_a_line_is_told_with_its_number(text: str, code: str) -> None:
    """From 1, as editors count."""
    assert problems(line("good"), text) == [(code, 2)]


def test_two_lines_of_one_id_could_not_be_told_apart() -> None:
    """The second one is at fault."""
    assert problems(line("a"), line("b"), line("a")) == [("duplicate_custom_id", 3)]


def test_a_file_has_lines_and_not_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """And of a file that is wrong throughout the first twenty lines are enough."""
    assert problems("", " ") == [("empty_file", None)]
    assert len(problems(*["x"] * 50)) == batch_input.MAX_PROBLEMS
    monkeypatch.setattr(batch_input, "MAX_LINES", 2)
    assert problems(line("a"), line("b"), line("c")) == [("too_many_tasks", None)]
