"""What a picture shows of a replay, thinned out to what can be seen."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from scaler.simulation.queueing import Capacity
from scaler.simulation.replay import Run
from scaler.simulation.trace import Floats, Trace

NUM_COLUMNS = 1500
"""Points across: about one a pixel. Of what falls into one, the load's mean and the queue's maximum are drawn."""


@dataclass(frozen=True)
class Span:
    """The part of the trace that is drawn, in seconds from its beginning."""

    from_s: float
    to_s: float

    @classmethod
    def whole(cls, trace: Trace) -> Span:
        return cls(0.0, trace.length_s)


def needed_per_minute(trace: Trace, capacity: Capacity, span: Span) -> tuple[Floats, Floats]:
    """What each minute needs at 70 %; the most of several where there are more minutes than columns."""
    step_s = 60.0 * max(1, round((span.to_s - span.from_s) / 60.0 / NUM_COLUMNS))
    at_s = np.arange(span.from_s, span.to_s, step_s)
    within = np.arange(0.0, step_s, 60.0)
    last_s = trace.length_s - 1e-6
    counts = [max(capacity.needed(trace.rate_at(min(at + off, last_s))) for off in within) for at in at_s]
    return at_s, np.array(counts, dtype=np.float64)


def steps_of(run: Run, span: Span) -> tuple[Floats, Floats, Floats]:
    """Moments at which something changes, with what is ready and what is wanted from then on."""
    ready, wanted = cut(run, run.ready, span), cut(run, run.wanted, span)
    moved = np.flatnonzero(np.diff(ready) + 1000.0 * np.diff(wanted)) + 1
    kept = np.unique(np.concatenate(([0], moved, [len(ready) - 1])))
    return span.from_s + kept * run.tick_s, ready[kept], wanted[kept]


def columns_of(run: Run, values: Floats, span: Span) -> tuple[Floats, Floats]:
    """The maximum of each column."""
    part = cut(run, values, span)
    per = max(1, len(part) // NUM_COLUMNS)
    whole = max(1, len(part) // per)
    return span.from_s + np.arange(whole) * per * run.tick_s, part[: whole * per].reshape(whole, per).max(
        axis=1
    )


def moment_text(trace: Trace, at_s: float) -> str:
    """The trace's own clock where it has one, else hours and minutes from its beginning."""
    if trace.start_unix_s:
        return datetime.fromtimestamp(trace.start_unix_s + at_s, UTC).strftime("%a %d %b %H:%M")
    minutes = int(at_s // 60)
    days = f"day {minutes // 1440 + 1}, " if trace.length_s > 1.5 * 86400 else ""
    return f"{days}{minutes // 60 % 24:02d}:{minutes % 60:02d}"


def cut(run: Run, values: Floats, span: Span) -> Floats:
    """The ticks of the span."""
    first = int(span.from_s // run.tick_s)
    return values[first : max(first + 1, round(span.to_s / run.tick_s))]
