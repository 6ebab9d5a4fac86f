"""What the parent makes of the children's news: all rows, those too that a dead child could not tell. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from loadtest.generating.messages import News, Sent, request_of
from loadtest.generating.work import Work
from loadtest.records import Request, Status

OnRequest = Callable[[Request], None]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is. Counts are of calls and their later turns, over all processes."""

    t_s: float
    num_due: int
    """Of the schedule, by now; of a closed loop: as many as were sent."""
    num_sent: int
    num_done: int
    num_failed: int
    num_in_flight: int


@dataclass
class Collector:
    """One per run."""

    work: Work
    on_request: OnRequest | None = None
    rows: list[Request] = field(default_factory=list)
    num_failed: int = 0
    num_sent: int = 0
    _open: dict[int, dict[tuple[int, int], Sent]] = field(default_factory=dict)
    _in_flight: dict[int, int] = field(default_factory=dict)

    def take(self, process: int, news: News) -> None:
        open_calls = self._open.setdefault(process, {})
        self._in_flight[process] = news.num_in_flight
        self.num_sent += len(news.sent)
        for sent in news.sent:
            open_calls[sent.index, sent.turn] = sent
        for row in news.rows:
            open_calls.pop((row.index, row.turn), None)
            self._add(request_of(row, process))

    def progress(self, t_s: float) -> Progress:
        due = self.num_sent
        if self.work.hold is None:
            due = int(np.searchsorted(self.work.t_intended_s, t_s))
        in_flight = sum(self._in_flight.values())
        return Progress(t_s, due, self.num_sent, len(self.rows), self.num_failed, in_flight)

    def finish(self, ended_s: float, num_processes: int) -> None:
        """Rows for all that no child told the end of: what was under way is censored, what was due is not sent."""
        for process, open_calls in self._open.items():
            for sent in open_calls.values():
                self._add(_censored(sent, process, ended_s))
        self._open.clear()
        if self.work.hold is not None:
            return
        told = {row.index for row in self.rows}
        for index in np.flatnonzero(self.work.t_intended_s <= ended_s).tolist():
            if index not in told:
                self._add(self._not_sent(index, index % num_processes))

    def _not_sent(self, index: int, process: int) -> Request:
        call, t_intended_s = self.work.call(index), float(self.work.t_intended_s[index])
        sent = Sent(index, 0, call.user, call.service, call.session, t_intended_s, math.nan)
        return _row(sent, process, Status.NOT_SENT, math.nan)

    def _add(self, request: Request) -> None:
        self.rows.append(request)
        self.num_failed += request.status is Status.ERROR
        if self.on_request is not None:
            self.on_request(request)

    def counted(self, status: Status) -> Iterator[Request]:
        return (row for row in self.rows if row.status is status)


def _censored(sent: Sent, process: int, ended_s: float) -> Request:
    return _row(sent, process, Status.CENSORED, max(ended_s, sent.t_sent_s))


def _row(sent: Sent, process: int, status: Status, t_last_s: float) -> Request:
    return Request(
        index=sent.index,
        process=process,
        user=sent.user,
        service=sent.service,
        session=sent.session,
        turn=sent.turn,
        status=status,
        error="generator: its process did not tell",
        instance="",
        t_intended_s=sent.t_intended_s,
        t_sent_s=sent.t_sent_s,
        t_first_s=math.nan,
        t_last_s=t_last_s,
        input_tokens=0,
        output_tokens=0,
        cached_tokens=0,
    )
