"""The tide: a compressed day on the real Triton, under the scaler and under a fixed peak, with the same arrivals.

The model's device time is emulated (`tide_repository`: asleep for 20 ms and 40 ms a row, in our own batch path), so
that eight instances run side by side on any machine. Its day has a wave of three times and one of ten times the
valley's rate; eight instances are about 85 % busy with the highest rate. Static-peak has eight all day.

- `utilization_mean`: seconds of batches on the emulated devices / instance-seconds, under the scaler; those that
  drain or stop count until they are gone. `utilization_static`: the same with the fixed peak.
- `p99_wait_over_static`: p99 waiting of the requests due at the peak (at least 0.9 of the highest rate), scaler /
  static-peak. Waiting is from when a request was due to when its batch began; `p99_wait_*_ms` are the two,
  `p99_wait_day_*_ms` those of the whole day.
- `valley_saving`: 1 - instance-seconds in the valleys under the scaler / with the fixed peak.
- `instance_seconds_share`: the same over the whole day, scaler / static-peak.
- `failed_requests`: of all days; `chat_failed_requests` of `chat`.
- `threshold_to_serving_p95_ms`: from when a rule's hold (and the cooldown) had ended to when the last new instance
  began its first batch; the wait for the next tick (0.5 s) is in it. `_busy_`: the same over six short waves while
  a process per core burns it.
- `chat_throughput_over_fixed`: tokens/s of waves of chats under the scaler / with one instance, which the cores
  bound; `chat_answers_differing` of them from the fixed instance's (greedy).

Waiting is left out as INVALID when the sender itself was late. `setup` in the JSON holds the day and the policy,
`decisions` every change with its reason. With TIDEGATE_BENCH_PLOT=PATH a PNG of the tide is drawn there.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import tide_chat
from benchmarks.report import Figure, Report
from benchmarks.statistics import percentile
from benchmarks.tide_day import Day, Stage
from benchmarks.tide_decisions import Reaction, reactions
from benchmarks.tide_figures import Side
from benchmarks.tide_load import MODEL, single_row_s
from benchmarks.tide_plot import draw
from benchmarks.tide_scaler import scaling
from benchmarks.tide_sides import ScaledSide, burnt_cores, scaled_day, static_day, up_options
from tidegate.testing import StackDidNotStart, running_stack

NAME = "tide"
SEED = 20261201
PLOT_VARIABLE = "TIDEGATE_BENCH_PLOT"
NUM_STATIC = 8
NUM_AT_PEAK = 8.0
"""Instances' worth of single rows that the highest rate is. With a batch of two now and then it keeps eight of them
about 85 % busy: the fixed peak is no larger than it has to be."""

STAGES = (Stage(60), Stage(110, crest=3), Stage(50), Stage(260, crest=10), Stage(60))
QUICK_STAGES = (Stage(10), Stage(24, crest=3), Stage(10), Stage(46, crest=10), Stage(10))
BUSY_STAGES = (Stage(6), Stage(18, crest=3)) * 6
QUICK_BUSY_STAGES = BUSY_STAGES[:2]

TICK_S = 0.5
WINDOW_S = 4.5
HOLD_S = 1.0
COOLDOWN_OUT_S = 3.0
POLICY = f"""\
models:
  {MODEL}:
    min_instances: 1
    max_instances: {NUM_STATIC}
    target_utilization: 0.86
    scale_out: {{utilization: 0.88, queue: 20, hold_s: {HOLD_S:g}, utilization_hold_s: {HOLD_S:g}}}
    scale_in: {{utilization: 0.30, queue: 5, survivors_utilization: 0.86, window_s: 4}}
    cooldown_out_s: {COOLDOWN_OUT_S:g}
    cooldown_in_s: 2
    forecast: {{enabled: false}}
"""
"""Cooldowns of 60 and 120 s would be hours of a day that lasts nine minutes. The thresholds are higher than the
defaults: a batch model that is 80 % busy has room yet, its batches grow."""

Progress = Callable[[str], None]


def run(quick: bool, progress: Progress) -> dict[str, Any]:
    stages, busy_stages = (QUICK_STAGES, QUICK_BUSY_STAGES) if quick else (STAGES, BUSY_STAGES)
    options = up_options(num_spares=NUM_STATIC - 1)
    with running_stack(*options) as running:
        highest_per_s = NUM_AT_PEAK / asyncio.run(single_row_s(running.stack.triton_grpc, num_calls=40))
        day = Day(highest_per_s / max(stage.crest for stage in stages), stages)
        progress(f"day of {day.describe()}")
        static = asyncio.run(static_day(running.stack, NUM_STATIC, day, SEED))
    progress(f"static-peak: {describe(static)}")
    progress(f"policy (tick {TICK_S:g} s, utilisation over {WINDOW_S:g} s):\n{POLICY}")
    with (
        running_stack(*options) as running,
        scaling(running.stack, POLICY, tick_s=TICK_S, window_s=WINDOW_S) as scaler,
    ):
        scaled = asyncio.run(scaled_day(running.stack, scaler, day, SEED, progress))
        progress(f"scaled: {describe(scaled.side)}")
        progress("short waves while every core is burnt")
        with burnt_cores():
            busy_day = Day(day.valley_per_s, busy_stages)
            busy = asyncio.run(scaled_day(running.stack, scaler, busy_day, SEED, progress))
    if path := os.environ.get(PLOT_VARIABLE):
        at_s = [event.at_s for event in scaled.changes]
        draw(Path(path), static, scaled.side, f"tidegate: {day.describe()}", at_s)
        progress(f"drawn: {path}")
    return report(static, scaled, busy, *_chat(quick, progress))


def report(
    static: Side,
    scaled: ScaledSide,
    busy: ScaledSide,
    of_chat: dict[str, Figure],
    skipped: dict[str, str],
) -> dict[str, Any]:
    invalid = {"static-peak": static.invalid_because(), "scaled": scaled.side.invalid_because()}
    skipped = skipped | {f"waiting, {side}": why for side, why in invalid.items() if why}
    made = figures(static, scaled.side)
    if not any(invalid.values()):
        made |= waiting_figures(static, scaled.side)
    made |= reaction_figures("threshold_to_serving", _reactions(scaled))
    made |= reaction_figures("threshold_to_serving_busy", _reactions(busy))
    failed = [failure for side in (static, scaled.side, busy.side) for failure in side.sent.failures]
    made["failed_requests"] = Figure(len(failed), "requests")
    made["changes"] = Figure(len(scaled.changes), "decisions")
    return Report(NAME, 1, made | of_chat, skipped=skipped).to_dict() | {
        "setup": {
            "day": static.day.describe(),
            "seed": SEED,
            "policy": POLICY,
            "tick_s": TICK_S,
            "window_s": WINDOW_S,
        },
        "decisions": [{"at_s": round(event.at_s, 1), "reason": event.reason} for event in scaled.changes],
        "failures": failed[:10],
    }


def figures(static: Side, scaled: Side) -> dict[str, Figure]:
    """What does not depend on how punctual the sender was."""
    is_valley = static.day.is_valley
    saving = 1 - scaled.instance_seconds(is_valley) / static.instance_seconds(is_valley)
    return {
        "utilization_mean": Figure(scaled.utilization, "ratio"),
        "utilization_static": Figure(static.utilization, "ratio"),
        "valley_saving": Figure(saving, "ratio"),
        "instance_seconds_share": Figure(scaled.instance_seconds() / static.instance_seconds(), "ratio"),
        "most_instances": Figure(scaled.most_instances, "instances"),
        "sender_late_p99_ms": Figure(max(static.late_p99_s, scaled.late_p99_s) * 1000, "ms"),
    }


def waiting_figures(static: Side, scaled: Side) -> dict[str, Figure]:
    is_peak = static.day.is_peak
    made = {"p99_wait_over_static": Figure(scaled.p99_wait_s(is_peak) / static.p99_wait_s(is_peak), "ratio")}
    for name, side in (("static", static), ("scaled", scaled)):
        made[f"p99_wait_{name}_ms"] = Figure(side.p99_wait_s(is_peak) * 1000, "ms")
        made[f"p99_wait_day_{name}_ms"] = Figure(side.p99_wait_s() * 1000, "ms")
    return made


def reaction_figures(name: str, of_scale_outs: Sequence[Reaction]) -> dict[str, Figure]:
    """None without a scale-out."""
    times_ms = [reaction.seconds * 1000 for reaction in of_scale_outs]
    if not times_ms:
        return {}
    low, high = min(times_ms), max(times_ms)
    return {f"{name}_p{each}_ms": Figure(percentile(times_ms, each), "ms", low, high) for each in (50, 95)}


def describe(side: Side) -> str:
    day = side.day
    return (
        f"{side.utilization:.1%} busy, {side.instance_seconds():.0f} instance-seconds "
        f"({side.instance_seconds(day.is_valley):.0f} in the valleys), at most {side.most_instances}; "
        f"p99 waiting {side.p99_wait_s(day.is_peak) * 1000:.0f} ms at the peak, {side.p99_wait_s() * 1000:.0f} ms "
        f"over the day; {side.mean_rows:.2f} requests a batch, {len(side.sent.failures)} failed; "
        f"sender late by {side.late_p99_s * 1000:.1f} ms at p99"
    )


def _reactions(scaled: ScaledSide) -> list[Reaction]:
    return reactions(scaled.events, scaled.side.sent.calls, HOLD_S, COOLDOWN_OUT_S)


def _chat(quick: bool, progress: Progress) -> tuple[dict[str, Figure], dict[str, str]]:
    """Figures, and why there are none."""
    try:
        return tide_chat.measure(quick, progress), {}
    except StackDidNotStart as exc:
        return {}, {"chat": str(exc)}
