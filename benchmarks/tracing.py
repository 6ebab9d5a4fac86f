"""What tracing costs: the gateway's processor time for a call and the calls a second, with 1 % traced against off.

Two stacks on one machine: one with tracing off, one at 1 % with its spans going on to a collector. Both serve an
echo; load goes to them in turn, in pairs, and which is first changes from pair to pair. After half of the pairs the
collector is killed.

- `cpu_over_off`: processor time of gateway and Triton for a call, at 1 % / off; the median of the pairs, `min` and
  `max` the bounds of its 90 % interval (bootstrap). The goal is 1.02.
- `throughput_over_off`: calls a second of 8 callers that each wait for their answer, likewise.
- `cpu_over_off_dead`, `throughput_over_off_dead`: the same of the pairs after the collector was killed.
- `num_failed`: calls that failed, in all rounds; `num_spans`: those that the collector got before it was killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import psutil
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from benchmarks.gateway_load import Door, echo_request
from benchmarks.report import Figure, Report
from contracts.stack import Stack
from tidegate.testing import running_stack

NAME = "tracing"
REPOSITORY = Path(__file__).parent / "gateway_repository"
RATIO = "0.01"
NUM_CALLERS = 8
PROCESSES = ("gateway", "tritonserver")
NUM_RESAMPLES = 2000

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Round:
    """One side's part of a pair."""

    num_calls: int
    num_failed: int
    seconds: float
    cpu_s: float

    @property
    def cpu_per_call_s(self) -> float:
        return self.cpu_s / self.num_calls

    @property
    def calls_per_s(self) -> float:
        return self.num_calls / self.seconds


@dataclass
class Pairs:
    """(off, on) of each pair."""

    rounds: list[tuple[Round, Round]] = field(default_factory=list)

    def cpu_ratios(self) -> list[float]:
        return [on.cpu_per_call_s / off.cpu_per_call_s for off, on in self.rounds]

    def throughput_ratios(self) -> list[float]:
        return [on.calls_per_s / off.calls_per_s for off, on in self.rounds]

    @property
    def num_failed(self) -> int:
        return sum(off.num_failed + on.num_failed for off, on in self.rounds)


def run(quick: bool, progress: Progress) -> dict[str, Any]:
    num_pairs, round_s = (4, 2.0) if quick else (20, 4.0)
    options = ("--repository", str(REPOSITORY), "--no-scaler", "--model=echo")
    with (
        collector() as sink,
        running_stack(*options, "--no-tracing") as off,
        running_stack(*options, "--trace-ratio", RATIO, "--otlp-endpoint", sink.url) as on,
    ):
        alive, dead = asyncio.run(_measured(off.stack, on.stack, sink, num_pairs, round_s, progress))
    figures = {
        "cpu_over_off": figure_of(alive.cpu_ratios()),
        "throughput_over_off": figure_of(alive.throughput_ratios()),
        "cpu_over_off_dead": figure_of(dead.cpu_ratios()),
        "throughput_over_off_dead": figure_of(dead.throughput_ratios()),
        "num_failed": Figure(alive.num_failed + dead.num_failed, "calls"),
        "num_spans": Figure(sink.num_spans, "spans"),
    }
    return Report(NAME, num_pairs, figures).to_dict()


async def _measured(
    off: Stack, on: Stack, sink: Collector, num_pairs: int, round_s: float, progress: Progress
) -> tuple[Pairs, Pairs]:
    doors = {"off": Door(off.gateway_grpc), "on": Door(on.gateway_grpc)}
    stacks = {"off": off, "on": on}
    alive, dead = Pairs(), Pairs()
    for name in doors:
        await _round(doors[name], stacks[name], round_s)  # connections, caches
    for index in range(num_pairs):
        if index == num_pairs // 2:
            sink.close()
            progress("the collector is dead from here on")
        order = ("off", "on") if index % 2 == 0 else ("on", "off")
        made = {name: await _round(doors[name], stacks[name], round_s) for name in order}
        (alive if index < num_pairs // 2 else dead).rounds.append((made["off"], made["on"]))
        cpu_ms = {name: f"{each.cpu_per_call_s * 1000:.3f}" for name, each in made.items()}
        progress(f"pair {index + 1} of {num_pairs}: ms of processor time a call {cpu_ms}")
    for door in doors.values():
        await door.channel.close()
    return alive, dead


async def _round(door: Door, stack: Stack, round_s: float) -> Round:
    request = echo_request()
    until_s = time.monotonic() + round_s
    counts = {"ok": 0, "failed": 0}

    async def caller() -> None:
        while time.monotonic() < until_s:
            try:
                await door.stub.ModelInfer(request)
                counts["ok"] += 1
            except grpc.aio.AioRpcError:
                counts["failed"] += 1

    began_s, before_s = time.monotonic(), cpu_s(stack)
    await asyncio.gather(*(caller() for _ in range(NUM_CALLERS)))
    took_s = time.monotonic() - began_s
    return Round(sum(counts.values()), counts["failed"], took_s, cpu_s(stack) - before_s)


def cpu_s(stack: Stack) -> float:
    times = [psutil.Process(stack.pids[name]).cpu_times() for name in PROCESSES]
    return float(sum(each.user + each.system for each in times))


def figure_of(ratios: Sequence[float]) -> Figure:
    """The median with the bounds of its 90 % interval."""
    low, high = interval_of(ratios)
    return Figure(statistics.median(ratios), "x", low, high)


def interval_of(values: Sequence[float], seed: int = 7) -> tuple[float, float]:
    """90 %, of the median, by the percentile bootstrap."""
    drawn = random.Random(seed)
    medians = sorted(statistics.median(drawn.choices(values, k=len(values))) for _ in range(NUM_RESAMPLES))
    return medians[NUM_RESAMPLES // 20], medians[-NUM_RESAMPLES // 20 - 1]


class Collector:
    """Takes OTLP over HTTP and counts."""

    def __init__(self) -> None:
        self.num_spans = 0
        self._is_closed = False
        sink = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                sink.num_spans += count_spans(body)
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._server.shutdown()
            self._server.server_close()


def count_spans(body: bytes) -> int:
    request = ExportTraceServiceRequest.FromString(body)
    return sum(len(scope.spans) for resource in request.resource_spans for scope in resource.scope_spans)


@contextlib.contextmanager
def collector() -> Iterator[Collector]:
    made = Collector()
    try:
        yield made
    finally:
        made.close()
