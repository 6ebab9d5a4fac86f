"""Tables of the report: per route, per instance, errors in groups. Figures of the measured window."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadtest.records import Float, Requests, Status
from loadtest.reporting.percentiles import TABLE_PERCENTILES, Quantile, quantile
from loadtest.reporting.timings import Mask, Timings

MAX_GROUPS = 40
"""Of errors or instances in a table; the rest is counted."""


_NUMBER = re.compile(r"(?<!http )\b\d+(\.\d+)?")
"""What errors of one kind differ in; an HTTP status is a kind."""


@dataclass(frozen=True, slots=True)
class Group:
    """What one route, service or instance did."""

    name: str
    num_requests: int
    num_ok: int
    num_errors: int
    num_unfinished: int
    num_not_sent: int
    rate: float
    """Requests a second, by intended start."""
    scheduled: tuple[Quantile, ...]
    """p50, p99, p99.9 of the scheduled latency."""
    ttft: tuple[Quantile, ...]
    """p50 and p99 of the time to the first token, from the intended start."""
    output_tokens_per_s: float
    """Tokens whose chunk came inside the window."""


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """Errors that differ only in numbers."""

    kind: str
    example: str
    count: int
    routes: str
    first_s: float
    last_s: float


def groups_by(
    names: npt.NDArray[np.str_], requests: Requests, timings: Timings, start_s: float, end_s: float
) -> tuple[Group, ...]:
    """One group a name, the largest first; empty names (no instance told) are one group, `not told`."""
    found = [
        _group(name, names == name, requests, timings, start_s, end_s) for name in np.unique(names).tolist()
    ]
    return tuple(sorted((one for one in found if one.num_requests), key=lambda one: -one.num_requests))


def _group(
    name: str, is_member: Mask, requests: Requests, timings: Timings, start_s: float, end_s: float
) -> Group:
    inside = is_member & timings.is_inside
    span_s = max(end_s - start_s, 1e-9)

    def having(status: Status) -> int:
        return int(np.count_nonzero(inside & (requests.status == status)))

    return Group(
        name=name or "not told",
        num_requests=int(np.count_nonzero(inside)),
        num_ok=having(Status.OK),
        num_errors=having(Status.ERROR),
        num_unfinished=having(Status.CENSORED),
        num_not_sent=having(Status.NOT_SENT),
        rate=float(np.count_nonzero(inside)) / span_s,
        scheduled=_quantiles(timings.scheduled_s[inside], (0.5, 0.99, 0.999)),
        ttft=_quantiles(timings.ttft_scheduled_s[inside], (0.5, 0.99)),
        output_tokens_per_s=_tokens_inside(requests, is_member, start_s, end_s) / span_s,
    )


def _tokens_inside(requests: Requests, is_member: Mask, start_s: float, end_s: float) -> int:
    """By the moment a token came, whenever its request began."""
    of_member = np.repeat(is_member, np.diff(requests.chunk_offsets))
    inside = of_member & (requests.chunk_times_s >= start_s) & (requests.chunk_times_s < end_s)
    return int(requests.chunk_tokens[inside].sum())


def _quantiles(values: Float, ps: Sequence[float]) -> tuple[Quantile, ...]:
    ordered = np.sort(values[np.isfinite(values)])
    return tuple(quantile(ordered, p) for p in ps)


def percentile_rows(samples: dict[str, Float]) -> list[tuple[float, int, list[Quantile]]]:
    """(p, n needed, one quantile a sample), for the table beside a distribution."""
    ordered = [np.sort(values) for values in samples.values()]
    rows = [(p, [quantile(values, p) for values in ordered]) for p in TABLE_PERCENTILES]
    return [(p, found[0].n_needed, found) for p, found in rows if found]


def error_groups(requests: Requests) -> tuple[ErrorGroup, ...]:
    """Of the whole run, the most frequent first."""
    failed = np.flatnonzero(requests.status != Status.OK)
    members: dict[str, list[int]] = {}
    for row in failed.tolist():
        members.setdefault(_kind(requests, row), []).append(row)
    found = [_error_group(kind, rows, requests) for kind, rows in members.items()]
    return tuple(sorted(found, key=lambda one: -one.count))


def _kind(requests: Requests, row: int) -> str:
    text = str(requests.error[row])
    if not text:
        status = Status(int(requests.status[row]))
        return {Status.CENSORED: "unfinished when the run ended", Status.NOT_SENT: "not sent"}.get(
            status, "no text"
        )
    return _NUMBER.sub("N", text)


def _error_group(kind: str, rows: Sequence[int], requests: Requests) -> ErrorGroup:
    when_s = requests.t_intended_s[rows]
    example = str(requests.error[rows[0]])
    return ErrorGroup(
        kind=kind,
        example=example or kind,
        count=len(rows),
        routes=", ".join(sorted(set(requests.user[rows].tolist()))),
        first_s=float(when_s.min()),
        last_s=float(when_s.max()),
    )
