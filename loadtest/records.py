"""What a run leaves behind of its requests: one row each, as columns. Every reported figure is computed from these.

Times are seconds since the run's t0 on CLOCK_MONOTONIC, which all processes of a machine share; NaN did not happen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.float64]
Int = npt.NDArray[np.int64]


class Status(IntEnum):
    """How a request ended. An unfinished one is censored, never dropped: it took at least until the run's end."""

    OK = 0
    ERROR = 1
    """The server, or the way to it, said no."""
    CENSORED = 2
    """Sent, and not finished when the run ended: `t_last_s` is that end."""
    NOT_SENT = 3
    """Its intended start lay inside the run and it was not sent: the generator's failure, never the server's."""


@dataclass(frozen=True, slots=True)
class Request:
    """One row, as a sender makes it. Its first chunk is the first that carries a token."""

    index: int
    """The request's number in the schedule, from 0."""
    process: int
    """Which generator process sent it."""
    user: str
    """The name of the plan's user class, a route of the report."""
    service: str
    """The model or service that was asked."""
    session: str
    """Empty, or what ties the turns of one conversation."""
    turn: int
    status: Status
    error: str
    """Empty, or what went wrong, in at most 200 characters; the kind first: `http 503: ...`."""
    instance: str
    """Which instance answered, when the answer says it."""
    t_intended_s: float
    t_sent_s: float
    t_first_s: float
    """NaN for unary calls that failed and streams without a token."""
    t_last_s: float
    input_tokens: int
    """0 when the server does not tell."""
    output_tokens: int
    cached_tokens: int
    chunk_times_s: Sequence[float] = ()
    """When each chunk with at least one token came, ascending."""
    chunk_tokens: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Requests:
    """All rows of a run, shape [n] each, sorted by `t_intended_s`; the chunks of row i are
    `chunk_times_s[chunk_offsets[i]:chunk_offsets[i + 1]]`."""

    index: Int
    process: Int
    user: npt.NDArray[np.str_]
    service: npt.NDArray[np.str_]
    session: npt.NDArray[np.str_]
    turn: Int
    status: Int
    error: npt.NDArray[np.str_]
    instance: npt.NDArray[np.str_]
    t_intended_s: Float
    t_sent_s: Float
    t_first_s: Float
    t_last_s: Float
    input_tokens: Int
    output_tokens: Int
    cached_tokens: Int
    chunk_offsets: Int
    chunk_times_s: Float
    chunk_tokens: Int

    def __len__(self) -> int:
        return len(self.index)


class RequestSink(Protocol):
    """Where a sender puts what it has finished."""

    def add(self, request: Request) -> None: ...


def columns_of(rows: Sequence[Request]) -> Requests:
    """The rows as columns, sorted by their intended start."""
    rows = sorted(rows, key=lambda row: (row.t_intended_s, row.index))
    lengths = [len(row.chunk_times_s) for row in rows]

    def ints(values: Sequence[int]) -> Int:
        return np.array(values, dtype=np.int64)

    def floats(values: Sequence[float]) -> Float:
        return np.array(values, dtype=np.float64)

    def words(values: Sequence[str]) -> npt.NDArray[np.str_]:
        return np.array(values, dtype=np.str_)

    return Requests(
        index=ints([row.index for row in rows]),
        process=ints([row.process for row in rows]),
        user=words([row.user for row in rows]),
        service=words([row.service for row in rows]),
        session=words([row.session for row in rows]),
        turn=ints([row.turn for row in rows]),
        status=ints([row.status for row in rows]),
        error=words([row.error for row in rows]),
        instance=words([row.instance for row in rows]),
        t_intended_s=floats([row.t_intended_s for row in rows]),
        t_sent_s=floats([row.t_sent_s for row in rows]),
        t_first_s=floats([row.t_first_s for row in rows]),
        t_last_s=floats([row.t_last_s for row in rows]),
        input_tokens=ints([row.input_tokens for row in rows]),
        output_tokens=ints([row.output_tokens for row in rows]),
        cached_tokens=ints([row.cached_tokens for row in rows]),
        chunk_offsets=ints([0, *np.cumsum(lengths, dtype=np.int64).tolist()]),
        chunk_times_s=floats([t for row in rows for t in row.chunk_times_s]),
        chunk_tokens=ints([n for row in rows for n in row.chunk_tokens]),
    )
