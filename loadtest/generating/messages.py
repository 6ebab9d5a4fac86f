"""What parent and children say to each other: msgpack frames behind a length, no pickle.

Down a child's stdin go one `Order`, then `Begin`, then `End` if the run is to stop early. Up a pipe of its own come
`Ready`, `News` several times a second, and `Finished` as the last word.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import TypeVar

import msgspec

from loadtest.records import Request, Status

MAX_ERROR_CHARS = 200
_LENGTH_BYTES = 4


class Target(msgspec.Struct, frozen=True):
    """Where the calls go. Addresses are host:port for gRPC and a URL for HTTP; empty: no such call may come."""

    http: str = ""
    grpc: str = ""
    key_env: str = ""
    """The environment variable that holds the API key; the key itself is in no message, argument or row."""
    ca_file: str = ""
    """PEM; empty: the system's."""
    cert_file: str = ""
    """PEM of a client certificate."""
    cert_key_file: str = ""
    is_grpc_tls: bool = False
    spans_socket: str = ""
    """Of a stack on this machine, which takes the spans of calls that are traced; empty: none are."""


class Order(msgspec.Struct, frozen=True):
    """A child's task."""

    process: int
    num_processes: int
    maker: str
    """`work.load_work`'s."""
    argument: bytes
    target: Target
    drain_s: float
    timeout_s: float
    """Per request, from its sending."""


class Begin(msgspec.Struct, frozen=True, tag=True):
    t0_s: float
    """CLOCK_MONOTONIC, which the processes of a machine share."""


class End(msgspec.Struct, frozen=True, tag=True):
    """Send nothing more, and let go of what is open."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Calls may begin."""

    digest: int
    """Of the times that this process has: it drew them by itself, and they must be the parent's."""


class Row(msgspec.Struct, frozen=True, array_like=True):
    """`Request` on the wire; the chunks are float64 and int64 as bytes."""

    index: int
    user: str
    service: str
    session: str
    turn: int
    status: int
    error: str
    instance: str
    t_intended_s: float
    t_sent_s: float
    t_first_s: float
    t_last_s: float
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    chunk_times_s: bytes
    chunk_tokens: bytes


class Sent(msgspec.Struct, frozen=True, array_like=True):
    """A call that is under way: should the child die, the parent knows at least this."""

    index: int
    turn: int
    user: str
    service: str
    session: str
    t_intended_s: float
    t_sent_s: float


class News(msgspec.Struct, frozen=True, tag=True):
    """Since the last one."""

    t_s: float
    sent: list[Sent]
    rows: list[Row]
    num_in_flight: int


class Finished(msgspec.Struct, frozen=True, tag=True):
    """Every row has been told."""

    cpu_s: float
    loop_lag_p99_s: float
    """How late its event loop was, by a beat of its own: so late may a chunk's time be. NaN: too short a run."""
    loop_lag_max_s: float


Up = Ready | News | Finished
Down = Begin | End

_T = TypeVar("_T")


def frame(message: msgspec.Struct) -> bytes:
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(_LENGTH_BYTES, "little") + body


class Frames:
    """Bytes as they come -> whole frames."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        self._bytes += data
        while len(self._bytes) >= _LENGTH_BYTES:
            end = _LENGTH_BYTES + int.from_bytes(self._bytes[:_LENGTH_BYTES], "little")
            if len(self._bytes) < end:
                return
            whole = bytes(self._bytes[_LENGTH_BYTES:end])
            del self._bytes[:end]
            yield whole


def request_of(row: Row, process: int) -> Request:
    return Request(
        index=row.index,
        process=process,
        user=row.user,
        service=row.service,
        session=row.session,
        turn=row.turn,
        status=Status(row.status),
        error=row.error,
        instance=row.instance,
        t_intended_s=row.t_intended_s,
        t_sent_s=row.t_sent_s,
        t_first_s=row.t_first_s,
        t_last_s=row.t_last_s,
        input_tokens=row.input_tokens,
        output_tokens=row.output_tokens,
        cached_tokens=row.cached_tokens,
        chunk_times_s=array("d", row.chunk_times_s),
        chunk_tokens=array("q", row.chunk_tokens),
    )
