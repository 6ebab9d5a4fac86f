"""A batch's input file: one request a line, checked whole before the first is asked. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")
MAX_LINES = 10_000
MAX_PROBLEMS = 20
"""As many are told; a file that is wrong throughout needs no longer list."""
MAX_ID_CHARS = 256


@dataclass(frozen=True)
class BatchLine:
    number: int
    """From 0."""
    custom_id: str
    body: dict[str, Any]


@dataclass(frozen=True)
class Problem:
    """Why a file is no input; `line` from 1, None: the whole."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class BatchInputInvalid(ValueError):
    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(problem.message for problem in problems))
        self.problems = problems


def read_lines(content: bytes, endpoint: str) -> list[BatchLine]:
    """Raises BatchInputInvalid with the first problems."""
    lines: list[BatchLine] = []
    problems: list[Problem] = []
    seen: set[str] = set()
    for number, raw in enumerate(_filled(content)):
        if number >= MAX_LINES:
            raise BatchInputInvalid(
                [Problem("too_many_tasks", f"more than {MAX_LINES:,} lines; split the file")]
            )
        found = _line(number, raw, endpoint)
        if isinstance(found, BatchLine) and found.custom_id in seen:
            found = Problem(
                "duplicate_custom_id", f"custom_id {found.custom_id!r} stands there twice", number + 1
            )
        if isinstance(found, Problem):
            problems.append(found)
            if len(problems) >= MAX_PROBLEMS:
                break
        else:
            seen.add(found.custom_id)
            lines.append(found)
    if not lines and not problems:
        problems.append(Problem("empty_file", "the file has no line"))
    if problems:
        raise BatchInputInvalid(problems)
    return lines


def _filled(content: bytes) -> Iterator[bytes]:
    return (line for line in content.splitlines() if line.strip())


def _line(number: int, raw: bytes, endpoint: str) -> BatchLine | Problem:
    def problem(code: str, message: str, param: str | None = None) -> Problem:
        return Problem(code, message, number + 1, param)

    try:
        found = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError) as exc:
        return problem("invalid_json_line", f"this line is no JSON: {exc}")
    if not isinstance(found, dict):
        return problem("invalid_json_line", "this line is no JSON object")
    custom_id, body = found.get("custom_id"), found.get("body")
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MAX_ID_CHARS:
        return problem(
            "invalid_custom_id", f"custom_id must have 1 to {MAX_ID_CHARS} characters", "custom_id"
        )
    if found.get("method") != "POST":
        return problem("invalid_method", "method must be POST", "method")
    if found.get("url") != endpoint:
        return problem("mismatched_endpoint", f"url must be {endpoint}, as of the batch", "url")
    if not isinstance(body, dict):
        return problem("invalid_body", "body must be a JSON object", "body")
    if body.get("stream"):
        return problem("invalid_body", "stream is not possible in a batch", "body.stream")
    return BatchLine(number, custom_id, body)
