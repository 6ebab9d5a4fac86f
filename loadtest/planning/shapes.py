"""The shapes of the plan as rates over time."""

from __future__ import annotations

import numpy as np

from contracts.recorded_bins import read_bins
from loadtest.planning.load import Day, Hold, Recorded, Shape, Spike, Stages, Wave
from loadtest.planning.rates import RateCurve

DAY_KNOTS = 288
"""Every five minutes of a day; between them the cosine is off by less than 0.01 % of the peak."""


def curve_of(shape: Shape) -> RateCurve:
    """Raises ValueError when a trace can't be read, or has nothing in the window."""
    match shape:
        case Hold():
            return _hold(shape)
        case Stages():
            return _stages(shape)
        case Spike():
            return _spike(shape)
        case Wave():
            return _wave(shape)
        case Day():
            return _day(shape)
        case Recorded():
            return _recorded(shape)


def _hold(shape: Hold) -> RateCurve:
    end_s = shape.ramp_s + shape.duration_s
    rate = shape.rate_per_s
    if shape.ramp_s == 0:
        return RateCurve.through([(0, rate), (end_s, rate)])
    return RateCurve.through([(0, 0), (shape.ramp_s, rate), (end_s, rate)])


def _stages(shape: Stages) -> RateCurve:
    knots = [(0.0, 0.0)]
    for stage in shape.stages:
        now_s = knots[-1][0]
        knots.append((now_s + stage.ramp_s, stage.rate_per_s))
        knots.append((now_s + stage.ramp_s + stage.hold_s, stage.rate_per_s))
    return RateCurve.through(knots)


def _spike(shape: Spike) -> RateCurve:
    rise_s = shape.before_s
    top_s = rise_s + shape.rise_s
    fall_s = top_s + shape.peak_s
    low_s = fall_s + shape.fall_s
    return RateCurve.through(
        [
            (0, shape.base_per_s),
            (rise_s, shape.base_per_s),
            (top_s, shape.peak_per_s),
            (fall_s, shape.peak_per_s),
            (low_s, shape.base_per_s),
            (low_s + shape.after_s, shape.base_per_s),
        ]
    )


def _wave(shape: Wave) -> RateCurve:
    base, crest, third_s = shape.base_per_s, shape.base_per_s * shape.times, shape.duration_s / 3
    return RateCurve.through(
        [
            (0, base),
            (third_s, base),
            (third_s, crest),
            (2 * third_s, crest),
            (2 * third_s, base),
            (shape.duration_s, base),
        ]
    )


def _day(shape: Day) -> RateCurve:
    share = np.linspace(0, 1, DAY_KNOTS + 1)
    share = np.unique(np.append(share, shape.peak_at))
    through_day = np.interp(share, [0, shape.peak_at, 1], [0, 0.5, 1])
    height = (1 - np.cos(2 * np.pi * through_day)) / 2
    rates = shape.trough_per_s + (shape.peak_per_s - shape.trough_per_s) * height
    return RateCurve(share * shape.duration_s, rates)


def _recorded(shape: Recorded) -> RateCurve:
    bins = read_bins(shape.trace)
    first = int(shape.from_s // bins.bin_s)
    last = len(bins.counts) if shape.span_s is None else first + max(1, round(shape.span_s / bins.bin_s))
    counts = bins.counts[first:last]
    if not len(counts) or counts.max() <= 0:
        raise ValueError(
            f"{shape.trace.name}: no request from second {shape.from_s:g} on; it is "
            f"{len(bins.counts) * bins.bin_s:g} s long"
        )
    edges_s = np.arange(len(counts) + 1) * shape.duration_s / len(counts)
    rates = counts / counts.max() * shape.peak_per_s
    return RateCurve(np.repeat(edges_s, 2)[1:-1], np.repeat(rates, 2))
