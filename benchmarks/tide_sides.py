"""The days of the tide bench as they are run: under a fixed peak, under the scaler, while the cores are burnt."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from benchmarks.tide_day import Day, Stage
from benchmarks.tide_decisions import Event, watching
from benchmarks.tide_figures import Side
from benchmarks.tide_load import MODEL, REPOSITORY, send_all
from benchmarks.tide_watch import counting
from contracts.stack import Stack
from scaler.acting.by_hand import scale

LEAD_IN_S = 10.0
"""Load of the valley before a day begins: a scaler that has just started does not scale in for a window."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class ScaledSide:
    """A day under the scaler. Times of events are seconds of the day."""

    side: Side
    events: Sequence[Event]

    @property
    def changes(self) -> list[Event]:
        return [event for event in self.events if event.is_change]


def up_options(num_spares: int) -> tuple[str, ...]:
    """Of `tidegate up`. Spares stand by for all of the peak, so that no scale-out waits for a fork."""
    return (
        *("--repository", str(REPOSITORY), "--model", MODEL, "--spares", f"{MODEL}={num_spares}"),
        *("--no-gateway", "--no-scaler", "--pool-bytes", "64MiB"),
    )


async def static_day(stack: Stack, num_instances: int, day: Day, seed: int) -> Side:
    await scale(stack, MODEL, num_instances, on_event=lambda _: None)
    side, _ = await _send_day(stack, day, seed)
    return side


async def scaled_day(stack: Stack, scaler: str, day: Day, seed: int, say: Say) -> ScaledSide:
    """`scaler`: its address. Says what it decides."""
    async with watching(scaler, MODEL, say) as events:
        side, began_s = await _send_day(stack, day, seed)
    return ScaledSide(side, [replace(event, at_s=event.at_s - began_s) for event in events])


async def _send_day(stack: Stack, day: Day, seed: int) -> tuple[Side, float]:
    """The day, and `time.monotonic()` of its beginning. The same seed sends the same."""
    lead_in = Day(day.valley_per_s, (Stage(LEAD_IN_S),))
    async with counting(stack, MODEL) as samples:
        await send_all(stack.triton_grpc, lead_in.arrivals(random.Random(seed)))
        sent = await send_all(stack.triton_grpc, day.arrivals(random.Random(seed)))
    of_day = [replace(sample, at_s=sample.at_s - sent.began_s) for sample in samples]
    return Side(day, sent, of_day), sent.began_s


@contextlib.contextmanager
def burnt_cores() -> Iterator[None]:
    """A process per core that never rests, until the block ends."""
    command = [sys.executable, "-c", "while True: pass"]
    burners = [subprocess.Popen(command) for _ in os.sched_getaffinity(0)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
        for burner in burners:
            burner.wait()
