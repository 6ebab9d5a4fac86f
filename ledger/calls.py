"""A call as the log keeps it: one row per attempt."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, Literal

from sqlalchemy import Connection, insert

from ledger import schema

Door = Literal["http", "grpc"]
Operation = Literal["chat", "completion", "embedding", "infer", "stream_infer"]
Outcome = Literal["ok", "error", "cancelled", "refused"]
OUTCOMES: tuple[Outcome, ...] = ("ok", "error", "cancelled", "refused")

MAX_TEXT_CHARS = 2_000
"""Of any text but the prompt: an upstream's error may be a page."""
_MAX_COUNT = 2**63 - 1
_MAX_SMALL = 2**15 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRow:
    """One attempt to answer one request. A request that was retried elsewhere has several."""

    request_id: str
    attempt: int = 1
    started_unix_s: float
    door: Door
    operation: Operation
    key_id: str = ""
    tenant: str = ""
    service: str = ""
    """The name that the client asked for; "" when the request was refused before it was known."""
    version: str = ""
    """routes.yaml's name of the version."""
    model: str = ""
    """Triton's model."""
    why: str = ""
    """Why this target: "split 5 %", "degraded: saturated"."""
    endpoint: str = ""
    instance: str = ""
    revision: int = 0
    """Of the routes that chose the target."""
    outcome: Outcome
    status: int = 0
    """HTTP's, or gRPC's when `door` is "grpc"."""
    error_code: str = ""
    error: str = ""
    finish_reason: str = ""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    ttft_s: float | None = None
    duration_s: float
    queue_s: float | None = None
    trace_id: str = ""
    is_stream: bool = False
    is_shadow: bool = False
    context: str = ""
    """What context management did: "truncated 5,012 → 4,000 tokens"."""
    prompt: str | None = None
    """Kept only where the operator opted in."""


FIELDS = tuple(field.name for field in fields(CallRow))
_values = attrgetter(*FIELDS)


def insert_calls(connection: Connection, rows: Sequence[CallRow]) -> None:
    connection.execute(insert(schema.calls), [storable(row) for row in rows])


def storable(row: CallRow) -> dict[str, Any]:
    """Values that every database takes, whatever a client or a caller sent: one odd row must not stop the rest."""
    return {name: read(value) for (name, read), value in zip(_READERS, _values(row), strict=True)}


def _text(value: object) -> str:
    text = str(value)[:MAX_TEXT_CHARS]
    return text if text.isascii() and "\0" not in text else _encodable(text)


def _prompt(value: object) -> str | None:
    return None if value is None else _encodable(str(value))


def _encodable(text: str) -> str:
    # PostgreSQL has no NUL in texts, and neither database lone surrogates.
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def _seconds(value: Any) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


def _needed_seconds(value: Any) -> float:
    return _seconds(value) or 0.0


def _count(value: Any) -> int | None:
    return None if value is None else max(0, min(_MAX_COUNT, int(value)))


def _small(value: Any) -> int:
    return max(0, min(_MAX_SMALL, int(value)))


_READER_OF: dict[str, Callable[[Any], object]] = {
    "attempt": _small,
    "status": _small,
    "revision": _count,
    "prompt_tokens": _count,
    "cached_tokens": _count,
    "output_tokens": _count,
    "started_unix_s": _needed_seconds,
    "duration_s": _needed_seconds,
    "ttft_s": _seconds,
    "queue_s": _seconds,
    "is_stream": bool,
    "is_shadow": bool,
    "prompt": _prompt,
}
_READERS = [(name, _READER_OF.get(name, _text)) for name in FIELDS]
