"""A finished span as processes hand it on. Times in nanoseconds since 1970, ids in lower-case hexadecimal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum

import msgspec

Value = str | bool | int | float | list[str]
Attributes = Mapping[str, Value]


class SpanKind(IntEnum):
    """OTLP's numbers."""

    INTERNAL = 1
    SERVER = 2
    CLIENT = 3


class SpanStatus(IntEnum):
    """OTLP's numbers."""

    UNSET = 0
    OK = 1
    ERROR = 2


class Event(msgspec.Struct, frozen=True, array_like=True):
    """A moment within a span."""

    at_unix_ns: int
    name: str
    attributes: dict[str, Value] = {}


class Link(msgspec.Struct, frozen=True, array_like=True):
    """Another span that this one has to do with, of the same or another trace."""

    trace_id: str
    span_id: str


class Span(msgspec.Struct, frozen=True, array_like=True):
    """One span, ended."""

    service: str
    """Whose it is: "tidegate-gateway"."""
    trace_id: str
    span_id: str
    parent_id: str
    """"": it has none."""
    name: str
    kind: SpanKind
    start_unix_ns: int
    end_unix_ns: int
    attributes: dict[str, Value] = {}
    events: list[Event] = []
    links: list[Link] = []
    status: SpanStatus = SpanStatus.UNSET
    status_text: str = ""

    @property
    def duration_s(self) -> float:
        return (self.end_unix_ns - self.start_unix_ns) / 1e9


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Span])


def encode_spans(spans: Sequence[Span]) -> bytes:
    return _encoder.encode(spans)


def decode_spans(data: bytes) -> list[Span]:
    """Raises msgspec.MsgspecError."""
    return _decoder.decode(data)


def unix_ns(unix_s: float) -> int:
    return int(unix_s * 1e9)
