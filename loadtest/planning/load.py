"""When requests are to start: shapes of the rate over time, arrivals around it, recorded traces, concurrency."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from loadtest.planning.strict import Strict
from loadtest.planning.trace_file import TraceFile

MAX_RATE_PER_S = 100_000.0
MAX_SECONDS = 7 * 86400.0

Rate = Annotated[float, Field(ge=0, le=MAX_RATE_PER_S)]
"""Requests per second; a conversation counts once, when it begins."""
PositiveRate = Annotated[float, Field(gt=0, le=MAX_RATE_PER_S)]
Span = Annotated[float, Field(gt=0, le=MAX_SECONDS)]
Seconds = Annotated[float, Field(ge=0, le=MAX_SECONDS)]


class Hold(Strict):
    """One rate. With `ramp_s` it rises to it first, and `duration_s` comes after."""

    kind: Literal["hold"]
    rate_per_s: PositiveRate
    duration_s: Span
    ramp_s: Seconds = 0.0


class Stage(Strict):
    """`ramp_s` to reach the rate, from the stage before (or 0) in a straight line; then `hold_s` at it."""

    rate_per_s: Rate
    hold_s: Seconds
    ramp_s: Seconds = 0.0


class Stages(Strict):
    """One after another."""

    kind: Literal["stages"]
    stages: Annotated[tuple[Stage, ...], Field(min_length=1, max_length=1000)]

    @model_validator(mode="after")
    def _lasts(self) -> Self:
        if not any(each.hold_s + each.ramp_s > 0 for each in self.stages):
            raise ValueError("stages: every hold_s and ramp_s is 0, so it lasts no time; set at least one")
        if not any(each.rate_per_s > 0 for each in self.stages):
            raise ValueError("stages: every rate_per_s is 0, so nothing would be sent; set at least one")
        return self


class Spike(Strict):
    """A base rate, a sudden peak, the base again."""

    kind: Literal["spike"]
    base_per_s: Rate
    peak_per_s: PositiveRate
    before_s: Span = 60.0
    rise_s: Seconds = 1.0
    peak_s: Span = 30.0
    fall_s: Seconds = 1.0
    after_s: Span = 60.0


class Wave(Strict):
    """A third of the time at the base rate, a third at `times` of it, a third at the base again."""

    kind: Literal["wave"]
    base_per_s: PositiveRate
    times: Annotated[float, Field(gt=1, le=1000)] = 3.0
    duration_s: Span


class Day(Strict):
    """A day's curve in any length of time: low at the start and the end, highest at `peak_at` of it.

    trough + (peak - trough) (1 - cos(2 pi u)) / 2, with u from 0 to 1/2 before the peak and from 1/2 to 1 after it.
    """

    kind: Literal["day"]
    trough_per_s: Rate
    peak_per_s: PositiveRate
    duration_s: Span
    peak_at: Annotated[float, Field(ge=0.01, le=0.99)] = 0.6
    """Share of the duration; 0.6 of a day is 14:24."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.trough_per_s > self.peak_per_s:
            raise ValueError(
                f"trough_per_s = {self.trough_per_s:g}, must be at most peak_per_s = {self.peak_per_s:g}"
            )
        return self


class Recorded(Strict):
    """The rate of a trace over time, for traces that only have counts. Arrivals are drawn around it."""

    kind: Literal["recorded"]
    trace: TraceFile
    from_s: Seconds = 0.0
    """Second of the trace where the window begins."""
    span_s: Span | None = None
    """How much of the trace; None: to its end."""
    duration_s: Span
    """How long the test takes; a day of the trace may be pressed into an hour."""
    peak_per_s: PositiveRate
    """The highest bin of the window becomes this rate."""


Shape = Annotated[Hold | Stages | Spike | Wave | Day | Recorded, Field(discriminator="kind")]


class Constant(Strict):
    """Evenly spaced wherever the rate is even."""

    kind: Literal["constant"]


class Poisson(Strict):
    """Independent callers: exponential gaps."""

    kind: Literal["poisson"] = "poisson"


class Gamma(Strict):
    """Gaps of a gamma distribution with the same mean."""

    kind: Literal["gamma"]
    burstiness: Annotated[float, Field(gt=0, le=1000)]
    """The gamma's shape parameter: 1 is Poisson, 0.25 has gaps with a coefficient of variation of 2, 100 is nearly
    even. 1 / sqrt(burstiness) is that coefficient. Lower is burstier, as in vLLM's benchmark."""


Arrivals = Annotated[Constant | Poisson | Gamma, Field(discriminator="kind")]


class OpenLoop(Strict):
    """Requests start by the schedule, whatever became of those before."""

    kind: Literal["open"]
    shape: Shape
    arrivals: Arrivals = Poisson()


class ClosedLoop(Strict):
    """So many requests are always in flight; the next begins when one ends. For memory, not for latency."""

    kind: Literal["closed"]
    concurrency: Annotated[int, Field(ge=1, le=100_000)]
    duration_s: Span
    ramp_s: Seconds = 0.0
    """The slots begin evenly spread over this time, which is part of the duration."""


class Replay(Strict):
    """Every recorded request at its recorded moment."""

    kind: Literal["replay"]
    trace: TraceFile
    from_s: Seconds = 0.0
    """Second of the trace where the window begins."""
    span_s: Span | None = None
    """How much of the trace; None: to its end."""
    time_scale: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """0.5: sessions begin twice as close together. Gaps inside a session stay as recorded."""
    rate_scale: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """Below 1 keeps that share of the sessions, chosen by the seed; 2.5 adds one and a half copies of the sessions,
    each moved a little. Never squeezes a session."""
    spread_s: Annotated[float, Field(gt=0, le=3600)] = 10.0
    """How far a copy's session is moved at most, to either side."""


Load = Annotated[OpenLoop | ClosedLoop | Replay, Field(discriminator="kind")]
