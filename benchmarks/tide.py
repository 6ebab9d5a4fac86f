"""The tide: a compressed day on the real Triton, under the scaler and under a fixed peak, with the same arrivals.

The model's device time is emulated (`tide_repository`: asleep for 40 ms and 20 ms a row, in our own batch path), so
that eight instances run side by side on any machine. Its day has a wave of three times and one of ten times the
valley's rate; eight instances are about 80 % busy with the highest rate. Static-peak has eight all day.

- `utilization_mean`: seconds of batches on the emulated devices / instance-seconds, under the scaler; those that
  drain or stop count until they are gone. `utilization_static`: the same with the fixed peak.
- `p99_wait_over_static`: p99 waiting of the requests due at the peak (at least 0.9 of the highest rate), scaler /
  static-peak. Waiting is from when a request was due to when its batch began; `p99_wait_*_ms` are the two,
  `p99_wait_day_*_ms` those of the whole day.
- `valley_saving`: 1 - instance-seconds in the valleys under the scaler / with the fixed peak.
- `instance_seconds_share`: the same over the whole day, scaler / static-peak.
- `failed_requests`: of both days and of `chat`.
- `threshold_to_serving_p95_ms`: from when a rule's hold (and the cooldown) had ended to when the last new instance
  began its first batch; `_busy_` while two processes burn the cores.
- `chat_throughput_over_fixed`: tokens/s of waves of chats under the scaler / with one instance, which the cores
  bound; `chat_answers_differing` of them from the fixed instance's (greedy).

Waiting is left out as INVALID when the sender itself was late. `setup` in the JSON holds the day and the policy,
`decisions` every change with its reason. With TIDEGATE_BENCH_PLOT=PATH a PNG of the tide is drawn there.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.report import Figure, Report
from benchmarks.statistics import percentile
from benchmarks.tide_day import Day, Stage
from benchmarks.tide_decisions import Event, Reaction, reactions, watching
from benchmarks.tide_figures import Side
from benchmarks.tide_load import MODEL, REPOSITORY, send_all, single_row_s
from benchmarks.tide_plot import draw
from benchmarks.tide_scaler import scaling
from benchmarks.tide_watch import counting
from contracts.stack import Stack
from scaler.by_hand import scale
from tidegate.testing import running_stack

NAME = "tide"
SEED = 20261201
PLOT_VARIABLE = "TIDEGATE_BENCH_PLOT"
NUM_STATIC = 8
NUM_AT_PEAK = 9.5
"""Instances' worth of single rows that the highest rate is. Batches of two and three make of it what keeps eight
instances about 80 % busy: the fixed peak is no larger than it has to be."""

STAGES = (Stage(60), Stage(110, crest=3), Stage(50), Stage(260, crest=10), Stage(60))
QUICK_STAGES = (Stage(10), Stage(24, crest=3), Stage(10), Stage(46, crest=10), Stage(10))

TICK_S = 0.5
WINDOW_S = 4.5
HOLD_S = 1.0
COOLDOWN_OUT_S = 3.0
POLICY = f"""\
models:
  {MODEL}:
    min_instances: 1
    max_instances: {NUM_STATIC}
    target_utilization: 0.84
    scale_out: {{utilization: 0.86, queue: 20, hold_s: {HOLD_S:g}, utilization_hold_s: {HOLD_S:g}}}
    scale_in: {{utilization: 0.30, queue: 5, survivors_utilization: 0.84, window_s: 4}}
    cooldown_out_s: {COOLDOWN_OUT_S:g}
    cooldown_in_s: 2
    forecast: {{enabled: false}}
"""
"""Cooldowns of 60 and 120 s would be hours of a day that lasts nine minutes. The thresholds are higher than the
defaults: a batch model that is 80 % busy has room yet, its batches grow."""

LEAD_IN_S = 10.0
"""Load of the first valley before the day begins: a scaler that has just started does not scale in for a window."""

Progress = Callable[[str], None]


@dataclass(frozen=True)
class ScaledDay:
    """A day under the scaler. Times of events and reactions are seconds of the day."""

    side: Side
    events: Sequence[Event]
    reactions: Sequence[Reaction]


def run(quick: bool, progress: Progress) -> dict[str, Any]:
    stages = QUICK_STAGES if quick else STAGES
    with running_stack(*_options(), "--no-scaler") as running:
        day = asyncio.run(_measured_day(running.stack, stages))
        due_s = day.arrivals(random.Random(SEED))
        progress(f"day of {day.describe()}; {len(due_s)} requests")
        static = asyncio.run(_static_day(running.stack, day, due_s))
    progress(f"static-peak: {describe(static)}")
    progress(f"policy (tick {TICK_S:g} s, utilisation over {WINDOW_S:g} s):\n{POLICY}")
    with (
        running_stack(*_options(), "--no-scaler") as running,
        scaling(running.stack, POLICY, tick_s=TICK_S, window_s=WINDOW_S) as scaler,
    ):
        scaled = asyncio.run(_scaled_day(running.stack, scaler, day, due_s, progress))
    progress(f"scaled: {describe(scaled.side)}")
    if path := os.environ.get(PLOT_VARIABLE):
        outs = [event.at_s for event in scaled.events if event.is_change]
        draw(Path(path), static, scaled.side, f"tidegate: {day.describe()}", outs)
        progress(f"drawn: {path}")
    invalid = {side: text for side, text in _invalid(static, scaled.side).items() if text}
    report = Report(NAME, 1, figures(static, scaled, with_waiting=not invalid), skipped=invalid).to_dict()
    return report | {
        "setup": {
            "day": day.describe(),
            "seed": SEED,
            "policy": POLICY,
            "tick_s": TICK_S,
            "window_s": WINDOW_S,
        },
        "decisions": [
            {"at_s": round(event.at_s, 1), "reason": event.reason}
            for event in scaled.events
            if event.is_change
        ],
    }


def figures(static: Side, scaled: ScaledDay, *, with_waiting: bool) -> dict[str, Figure]:
    day, side = static.day, scaled.side
    made = {
        "utilization_mean": Figure(side.utilization, "ratio"),
        "utilization_static": Figure(static.utilization, "ratio"),
        "valley_saving": Figure(
            1 - side.instance_seconds(day.is_valley) / static.instance_seconds(day.is_valley), "ratio"
        ),
        "instance_seconds_share": Figure(side.instance_seconds() / static.instance_seconds(), "ratio"),
        "failed_requests": Figure(len(static.sent.failures) + len(side.sent.failures), "requests"),
        "changes": Figure(sum(event.is_change for event in scaled.events), "decisions"),
        "most_instances": Figure(side.most_instances, "instances"),
        "sender_late_p99_ms": Figure(max(static.late_p99_s, side.late_p99_s) * 1000, "ms"),
    }
    if with_waiting:
        at_peak = {
            name: each.p99_wait_s(day.is_peak) for name, each in (("static", static), ("scaled", side))
        }
        made["p99_wait_over_static"] = Figure(at_peak["scaled"] / at_peak["static"], "ratio")
        for name, each in (("static", static), ("scaled", side)):
            made[f"p99_wait_{name}_ms"] = Figure(at_peak[name] * 1000, "ms")
            made[f"p99_wait_day_{name}_ms"] = Figure(each.p99_wait_s() * 1000, "ms")
    if times_ms := [reaction.seconds * 1000 for reaction in scaled.reactions]:
        made["threshold_to_serving_p50_ms"] = Figure(
            percentile(times_ms, 50), "ms", min(times_ms), max(times_ms)
        )
        made["threshold_to_serving_p95_ms"] = Figure(
            percentile(times_ms, 95), "ms", min(times_ms), max(times_ms)
        )
    return made


def describe(side: Side) -> str:
    day = side.day
    return (
        f"{side.utilization:.1%} busy, {side.instance_seconds():.0f} instance-seconds "
        f"({side.instance_seconds(day.is_valley):.0f} in the valleys), at most {side.most_instances}; "
        f"p99 waiting {side.p99_wait_s(day.is_peak) * 1000:.0f} ms at the peak, {side.p99_wait_s() * 1000:.0f} ms "
        f"over the day; {side.mean_rows:.2f} requests a batch, {len(side.sent.failures)} failed; "
        f"sender late by {side.late_p99_s * 1000:.1f} ms at p99"
    )


def _invalid(static: Side, scaled: Side) -> dict[str, str | None]:
    return {
        "waiting under static-peak": static.invalid_because(),
        "waiting under the scaler": scaled.invalid_because(),
    }


def _options() -> tuple[str, ...]:
    """All instances' workers stand by, as they do where a peak is expected: a scale-out does not wait for forks."""
    return (
        *("--repository", str(REPOSITORY), "--model", MODEL, "--spares", f"{MODEL}={NUM_STATIC - 1}"),
        *("--no-gateway", "--pool-bytes", "64MiB"),
    )


async def _measured_day(stack: Stack, stages: tuple[Stage, ...]) -> Day:
    """Rates from what one instance bears here, one row at a time."""
    highest_per_s = NUM_AT_PEAK / await single_row_s(stack.triton_grpc, num_calls=40)
    return Day(highest_per_s / max(stage.crest for stage in stages), stages)


async def _static_day(stack: Stack, day: Day, due_s: Sequence[float]) -> Side:
    await scale(stack, MODEL, NUM_STATIC, on_event=lambda _: None)
    side, _ = await _send_day(stack, day, due_s)
    return side


async def _scaled_day(
    stack: Stack, scaler: str, day: Day, due_s: Sequence[float], progress: Progress
) -> ScaledDay:
    async with watching(scaler, MODEL, progress) as events:
        side, began_s = await _send_day(stack, day, due_s)
    of_day = [replace(event, at_s=event.at_s - began_s) for event in events]
    return ScaledDay(side, of_day, reactions(of_day, side.sent.calls, HOLD_S, COOLDOWN_OUT_S))


async def _send_day(stack: Stack, day: Day, due_s: Sequence[float]) -> tuple[Side, float]:
    """The day, after a lead-in at the valley's rate; and `time.monotonic()` of its beginning."""
    lead_in = Day(day.valley_per_s, (Stage(LEAD_IN_S),))
    async with counting(stack, MODEL) as samples:
        await send_all(stack.triton_grpc, lead_in.arrivals(random.Random(SEED)))
        sent = await send_all(stack.triton_grpc, due_s)
    of_day = [replace(sample, at_s=sample.at_s - sent.began_s) for sample in samples]
    return Side(day, sent, of_day), sent.began_s
