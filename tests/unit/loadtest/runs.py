"""Runs that never took place: rows and curves for tests of measuring and judging."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np

from loadtest.curve import Curve, Series
from loadtest.judging.checks import RunFacts
from loadtest.judging.expression import goals_of, parse_all
from loadtest.judging.judge import judge
from loadtest.measuring.metrics import Measured, measure
from loadtest.measuring.steady import Window
from loadtest.records import Request, Requests, Status, columns_of
from loadtest.verdict import Judgement, Row

NO_CURVE = Curve((), ())


def a_request(t_s: float, latency_s: float = 0.5, **changes: object) -> Request:
    """Of user chat: sent when due, four tokens in four chunks, the first after a fifth of the time."""
    chunks = tuple(t_s + latency_s * part for part in (0.2, 0.4, 0.6, 1.0))
    request = Request(
        index=round(1000 * t_s),
        process=0,
        user="chat",
        service="chat",
        session="",
        turn=0,
        status=Status.OK,
        error="",
        instance="chat-0",
        t_intended_s=t_s,
        t_sent_s=t_s,
        t_first_s=chunks[0],
        t_last_s=t_s + latency_s,
        input_tokens=10,
        output_tokens=4,
        cached_tokens=0,
        chunk_times_s=chunks,
        chunk_tokens=(1, 1, 1, 1),
    )
    return replace(request, **changes)  # type: ignore[arg-type]


def failed(t_s: float, latency_s: float = 0.001) -> Request:
    """Refused at once: without care it would be the fastest request of all."""
    return a_request(
        t_s,
        latency_s,
        status=Status.ERROR,
        error="http 503: full",
        t_first_s=np.nan,
        chunk_times_s=(),
        chunk_tokens=(),
    )


def unfinished(t_s: float, end_s: float) -> Request:
    return a_request(
        t_s, end_s - t_s, status=Status.CENSORED, t_first_s=np.nan, chunk_times_s=(), chunk_tokens=()
    )


def not_sent(t_s: float) -> Request:
    return a_request(
        t_s,
        status=Status.NOT_SENT,
        t_sent_s=np.nan,
        t_first_s=np.nan,
        t_last_s=np.nan,
        chunk_times_s=(),
        chunk_tokens=(),
    )


def even_run(n: int = 600, rate_per_s: float = 10.0, latency_s: float = 0.5) -> list[Request]:
    return [a_request(i / rate_per_s, latency_s, index=i) for i in range(n)]


def window_over(requests: Requests) -> Window:
    end_s = float(requests.t_intended_s.max()) + 0.1 if len(requests) else 60.0
    return Window(0.0, end_s, True, "no drift", ())


def measured_of(rows: list[Request], curve: Curve = NO_CURVE, lines: tuple[str, ...] = ()) -> Measured:
    requests = columns_of(rows)
    return measure(requests, curve, window_over(requests), goals_of(parse_all(lines)))


def judged(
    rows: list[Request], *lines: str, curve: Curve = NO_CURVE, window: Window | None = None
) -> Judgement:
    requests = columns_of(rows)
    expressions = parse_all(lines)
    measured = measure(requests, curve, window or window_over(requests), goals_of(expressions))
    drawn_s = requests.t_intended_s[requests.turn == 0]
    return judge(expressions, measured, RunFacts(drawn_s=drawn_s))


def row_of(judgement: Judgement, expression: str) -> Row:
    return next(row for row in judgement.rows if row.expression == expression)


def shuffled(requests: Requests, seed: int) -> Requests:
    """The same rows in another order, chunks with them."""
    order = np.random.default_rng(seed).permutation(len(requests))
    pieces = [
        np.arange(requests.chunk_offsets[row], requests.chunk_offsets[row + 1], dtype=np.int64)
        for row in order
    ]
    chunks = np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.int64)
    lengths = np.diff(requests.chunk_offsets)[order]
    columns = {
        field.name: getattr(requests, field.name)[order]
        for field in fields(Requests)
        if not field.name.startswith("chunk")
    }
    return Requests(
        **columns,
        chunk_offsets=np.concatenate(([0], np.cumsum(lengths))).astype(np.int64),
        chunk_times_s=requests.chunk_times_s[chunks],
        chunk_tokens=requests.chunk_tokens[chunks],
    )


def series(
    name: str, values: list[float], hz: float = 4.0, start_s: float = -2.0, model: str = "chat"
) -> Series:
    t_s = start_s + np.arange(len(values)) / hz
    return Series(name, (("model", model),), "1", t_s, np.array(values, dtype=float))


def curve_of(*all_series: Series) -> Curve:
    return Curve(all_series, ())
