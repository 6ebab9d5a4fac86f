"""What Locust's process and a child say to each other: a JSON object a line."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from loadtest.call import Call
from loadtest.generating.messages import Row, Target
from loadtest.records import Request, Status


class Ask(msgspec.Struct, frozen=True, tag=True):
    """To the asker: send this now, and its later turns when they are due."""

    id: int
    call: Call


class Open(msgspec.Struct, frozen=True, tag=True):
    """To the asker, first: where calls go."""

    target: Target
    timeout_s: float


class Told(msgspec.Struct, frozen=True, tag=True):
    """From a child: a request has ended."""

    user: str
    turn: int
    latency_s: float
    """From the intended start, as the others."""
    ttft_s: float | None
    """None: it failed, or its answer comes in one piece."""
    tpot_s: float | None
    problem: str
    """Empty: it ended well."""
    is_censored: bool = False
    """It was under way when all ended."""


def told(row: Row | Request) -> Told:
    is_ok = row.status == Status.OK
    is_stream = is_ok and len(row.chunk_times_s) > 0
    tokens = row.output_tokens
    return Told(
        user=row.user,
        turn=row.turn,
        latency_s=row.t_last_s - row.t_intended_s,
        ttft_s=row.t_first_s - row.t_intended_s if is_stream else None,
        tpot_s=(row.t_last_s - row.t_first_s) / (tokens - 1) if is_stream and tokens > 1 else None,
        problem="" if is_ok else row.error or Status(row.status).name.lower().replace("_", " "),
        is_censored=row.status == Status.CENSORED,
    )


class Ready(msgspec.Struct, frozen=True, tag=True):
    """From the asker: calls may come."""


class Done(msgspec.Struct, frozen=True, tag=True):
    """From the asker: all turns of an Ask have ended."""

    id: int


class Going(msgspec.Struct, frozen=True, tag=True):
    """From a planned run, several times a second."""

    stage: str
    in_flight: int


class Judged(msgspec.Struct, frozen=True, tag=True):
    """From a planned run, last: the verdict's word and exit code, and where all is kept."""

    verdict: str
    exit_code: int
    folder: str
    reasons: list[str]


ToAsker = Open | Ask
FromChild = Ready | Told | Done | Going | Judged

_T = TypeVar("_T")


def line_of(message: msgspec.Struct) -> bytes:
    return msgspec.json.encode(message) + b"\n"
