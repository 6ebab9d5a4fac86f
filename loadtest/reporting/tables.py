"""Tables of the report: per route, model and instance, tokens, and errors in groups."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadtest.measuring.metrics import Measured
from loadtest.measuring.quantiles import Quantile
from loadtest.records import Requests, Status

MAX_GROUPS = 40
"""Of errors or instances in a table; the rest is counted."""
TOKEN_METRICS = {
    "tpot": "time per output token after the first, one value a request",
    "gap": "between chunks with tokens, all pooled; the interval resamples whole requests",
    "gap.worst": "the longest gap of each request",
}

_NUMBER = re.compile(r"(?<!http )\b\d+(\.\d+)?")
"""What errors of one kind differ in; an HTTP status is a kind."""


@dataclass(frozen=True, slots=True)
class Group:
    """What one route, model or instance did with the requests that were due in the window."""

    name: str
    num_requests: int
    rate: float
    num_ok: int
    num_errors: int
    num_unfinished: int
    num_not_sent: int
    quantiles: tuple[Quantile, ...]
    """Latency p50, p99, p99.9 and TTFT p50, p99, all from the intended start."""
    tokens_per_s: float


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """Errors that differ only in numbers."""

    example: str
    count: int
    routes: str
    first_s: float
    last_s: float


_QUANTILES = (
    ("latency.scheduled", 0.5),
    ("latency.scheduled", 0.99),
    ("latency.scheduled", 0.999),
    ("ttft.scheduled", 0.5),
    ("ttft.scheduled", 0.99),
)


def groups_by(measured: Measured, key: str, names: Sequence[str]) -> list[Group]:
    """`key`: user, service or instance. The largest first; those without a request in the window are left out."""
    found = [_group(measured, key, name) for name in names]
    return sorted((one for one in found if one.num_requests), key=lambda one: -one.num_requests)


def _group(measured: Measured, key: str, name: str) -> Group:
    scope = ((key, name),)
    statuses = measured.requests.status[measured.rows(scope)]

    def having(status: Status) -> int:
        return int(np.count_nonzero(statuses == status))

    return Group(
        name=name,
        num_requests=len(statuses),
        rate=measured.rate("requests.offered", scope) or 0.0,
        num_ok=having(Status.OK),
        num_errors=having(Status.ERROR),
        num_unfinished=having(Status.CENSORED),
        num_not_sent=having(Status.NOT_SENT),
        quantiles=tuple(measured.quantile(metric, p, scope) for metric, p in _QUANTILES),
        tokens_per_s=measured.rate("tokens.rate", scope) or 0.0,
    )


def token_rows(measured: Measured) -> list[tuple[str, str, list[Quantile]]]:
    """(metric, meaning, p50 and p99 and p99.9) of what streams; empty without a stream."""
    if not measured.is_streaming.any() or not measured.gaps().n_requests:
        return []
    return [
        (metric, meaning, [measured.quantile(metric, p) for p in (0.5, 0.99, 0.999)])
        for metric, meaning in TOKEN_METRICS.items()
    ]


def error_groups(requests: Requests) -> list[ErrorGroup]:
    """Of the whole run, the most frequent first."""
    members: dict[str, list[int]] = {}
    for row in np.flatnonzero(requests.status != Status.OK).tolist():
        members.setdefault(_NUMBER.sub("N", _text(requests, row)), []).append(row)
    found = [
        ErrorGroup(
            example=_text(requests, rows[0]),
            count=len(rows),
            routes=", ".join(sorted(set(requests.user[rows].tolist()))),
            first_s=float(requests.t_intended_s[rows].min()),
            last_s=float(requests.t_intended_s[rows].max()),
        )
        for rows in members.values()
    ]
    return sorted(found, key=lambda one: -one.count)


def _text(requests: Requests, row: int) -> str:
    if text := str(requests.error[row]):
        return text
    words = {Status.CENSORED: "unfinished when the run ended", Status.NOT_SENT: "not sent"}
    return words.get(Status(int(requests.status[row])), "failed without a word")
