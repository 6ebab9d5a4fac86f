"""Recorded load with a row a request: Azure 2023, BurstGPT, Mooncake.

A stamp that is missing, negative, no number or earlier than the one before is refused with its line: taken as 0, or
sorted away, it would make another load than the recorded one.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

BLOCK_TOKENS = 512
"""Of Mooncake's `hash_ids`: two requests that share an id share so many tokens, and all before them."""


class TraceUnreadable(ValueError):
    """The text says which file, which line, and what is wrong."""


@dataclass(frozen=True)
class Row:
    """One request, as the file has it."""

    t_s: float
    input_tokens: int
    output_tokens: int
    """0: it failed when it was recorded (BurstGPT)."""
    session: str = ""
    """Empty: the file knows no sessions, or not this one's."""
    blocks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Rows:
    """All requests, shape [n] each, in the file's order, which is that of time."""

    name: str
    start_unix_s: float
    """When second 0 was, the first request's moment; 0 where the file does not say."""
    t_s: npt.NDArray[np.float64]
    input_tokens: npt.NDArray[np.int64]
    output_tokens: npt.NDArray[np.int64]
    session: npt.NDArray[np.int64]
    """Requests with the same number belong together; one that is alone has a number of its own."""
    blocks: tuple[tuple[int, ...], ...]
    """Of each row; () where the file has none."""

    def __len__(self) -> int:
        return len(self.t_s)

    @property
    def length_s(self) -> float:
        return float(self.t_s[-1])


def read_rows(path: Path) -> Rows:
    """Which form it is says the first line. Raises TraceUnreadable, and OSError when there is no such file."""
    with path.open(encoding="utf-8", errors="replace", newline="") as lines:
        first = lines.readline()
        lines.seek(0)
        if first.startswith("{"):
            found = list(_read(path, enumerate(lines, start=1), _mooncake))
        else:
            table = csv.DictReader(lines, strict=True)
            read = _csv_reader(table.fieldnames or ())
            if read is None:
                raise TraceUnreadable(
                    f"{path}: begins {first.strip()[:60]!r}; a row a request is TIMESTAMP,ContextTokens,"
                    "GeneratedTokens (Azure), Timestamp,...,Request tokens,Response tokens (BurstGPT), or JSON "
                    "lines with timestamp, input_length, output_length (Mooncake)"
                )
            found = list(_read(path, ((table.line_num, row) for row in table), read))
    if not found:
        raise TraceUnreadable(f"{path}: no request in it")
    return _columns(path.stem, found)


def _csv_reader(columns: Any) -> Callable[[Any], Row] | None:
    if {"TIMESTAMP", "ContextTokens", "GeneratedTokens"} <= set(columns):
        return _azure
    if {"Timestamp", "Request tokens", "Response tokens"} <= set(columns):
        return _burstgpt
    return None


def _read(path: Path, lines: Iterator[tuple[int, Any]], read: Callable[[Any], Row]) -> Iterator[Row]:
    """Raises TraceUnreadable at the first line that is wrong."""
    before_s, at = -math.inf, 0
    try:
        for line, raw in lines:
            at = line
            if isinstance(raw, str) and not raw.strip():
                continue
            row = read(raw)
            if row.t_s < before_s:
                raise ValueError(
                    f"the stamp {row.t_s:g} s is earlier than the one before, {before_s:g} s; sort it first"
                )
            before_s = row.t_s
            yield row
    except csv.Error as exc:
        raise TraceUnreadable(f"{path}, line {at + 1}: {exc}") from exc
    except (ValueError, TypeError, OverflowError) as exc:
        raise TraceUnreadable(f"{path}, line {at}: {exc}") from exc


def _azure(row: Mapping[str, str | None]) -> Row:
    text = row["TIMESTAMP"]
    if not text:
        raise ValueError("TIMESTAMP is missing")
    # Seven digits, of 100 ns; Python's dates have six.
    stamp = datetime.fromisoformat(text[:26])
    return Row(
        stamp.replace(tzinfo=stamp.tzinfo or UTC).timestamp(),
        _count(row, "ContextTokens"),
        _count(row, "GeneratedTokens"),
    )


def _burstgpt(row: Mapping[str, str | None]) -> Row:
    return Row(
        _stamp(row, "Timestamp"),
        _count(row, "Request tokens"),
        _count(row, "Response tokens"),
        session=(row.get("Session ID") or "").strip(),
    )


def _mooncake(line: str) -> Row:
    row = json.loads(line)
    if not isinstance(row, dict):
        raise ValueError(f"is a {type(row).__name__}, must be an object")
    blocks = row.get("hash_ids", [])
    if not isinstance(blocks, list) or not all(type(block) is int for block in blocks):
        raise ValueError("hash_ids must be a list of whole numbers")
    return Row(
        _stamp(row, "timestamp") / 1000.0,
        _count(row, "input_length"),
        _count(row, "output_length"),
        blocks=tuple(blocks),
    )


def _stamp(row: Mapping[str, Any], key: str) -> float:
    return _number(row, key, whole=False)


def _count(row: Mapping[str, Any], key: str) -> int:
    return int(_number(row, key, whole=True))


def _number(row: Mapping[str, Any], key: str, *, whole: bool) -> float:
    value = row.get(key)
    if value is None or value == "":
        raise ValueError(f"{key} is missing")
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{key} = {value!r}, must be a number")
    number = float(value)
    if not math.isfinite(number) or number < 0 or (whole and number != int(number)):
        raise ValueError(f"{key} = {value!r}, must be a {'whole ' if whole else ''}number from 0 on")
    return number


def _columns(name: str, rows: list[Row]) -> Rows:
    start_s = rows[0].t_s
    is_date = start_s > 1e9
    return Rows(
        name=name,
        start_unix_s=start_s if is_date else 0.0,
        t_s=np.array([row.t_s - start_s for row in rows]),
        input_tokens=np.array([row.input_tokens for row in rows], dtype=np.int64),
        output_tokens=np.array([row.output_tokens for row in rows], dtype=np.int64),
        session=np.array(list(_sessions(rows)), dtype=np.int64),
        blocks=tuple(row.blocks for row in rows),
    )


def _sessions(rows: list[Row]) -> Iterator[int]:
    """By the file's own name; else by the second block, whose id stands for the first two: the first alone is often
    a system prompt that all share."""
    known: dict[str | int, int] = {}
    for at, row in enumerate(rows):
        key: str | int = row.session or (row.blocks[1] if len(row.blocks) > 1 else "")
        yield known.setdefault(key, at) if key != "" else at
