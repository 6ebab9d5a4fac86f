"""What tracing costs: the gateway's processor time for a call and the calls a second, with 1 % traced against off.

Two stacks on one machine: one with tracing off, one at 1 % with its spans going on to a collector. Both serve an
echo; load goes to them in turn, in pairs of half a second each, so that what else the machine does meets both, and
which is first changes from pair to pair. After half of the pairs the collector is killed.

- `cpu_over_off`: processor time of gateway and Triton for a call, at 1 % / off, of all pairs together; `min` and
  `max` the bounds of its 90 % interval (bootstrap over pairs). What either does while the other is asked counts:
  spans go out then. The goal is 1.02.
- `throughput_over_off`: calls a second of 8 callers that each wait for their answer, likewise.
- `cpu_over_off_dead`, `throughput_over_off_dead`: the same of the pairs after the collector was killed.
- `num_failed`: calls that failed, in all rounds; `num_spans`: those that the collector got before it was killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from benchmarks.cpu_clock import cpu_s
from benchmarks.gateway_load import Door, echo_request
from benchmarks.report import Figure, Report
from contracts.stack import Stack
from tidegate.testing import running_stack

NAME = "tracing"
REPOSITORY = Path(__file__).parent / "gateway_repository"
RATIO = "0.01"
ROUND_S, WARM_UP_S = 0.5, 4.0
SAY_EVERY = 20
NUM_CALLERS = 8
PROCESSES = ("gateway", "tritonserver")
NUM_RESAMPLES = 2000

Progress = Callable[[str], None]
Ratio = Callable[[Sequence[tuple["Round", "Round"]]], float]


@dataclass(frozen=True)
class Round:
    """One side's part of a pair."""

    num_calls: int
    num_failed: int
    seconds: float
    cpu_s: float


@dataclass
class Pairs:
    """(off, on) of each pair."""

    rounds: list[tuple[Round, Round]] = field(default_factory=list)

    @property
    def num_failed(self) -> int:
        return sum(off.num_failed + on.num_failed for off, on in self.rounds)


def run(quick: bool, progress: Progress) -> dict[str, Any]:
    num_pairs = 20 if quick else 300
    options = ("--repository", str(REPOSITORY), "--no-scaler", "--model=echo")
    with (
        collector() as sink,
        running_stack(*options, "--no-tracing") as off,
        running_stack(*options, "--trace-ratio", RATIO, "--otlp-endpoint", sink.url) as on,
    ):
        alive, dead = asyncio.run(_measured(off.stack, on.stack, sink, num_pairs, progress))
    figures = {
        "cpu_over_off": figure_of(alive, cpu_ratio),
        "throughput_over_off": figure_of(alive, throughput_ratio),
        "cpu_over_off_dead": figure_of(dead, cpu_ratio),
        "throughput_over_off_dead": figure_of(dead, throughput_ratio),
        "num_failed": Figure(alive.num_failed + dead.num_failed, "calls"),
        "num_spans": Figure(sink.num_spans, "spans"),
    }
    return Report(NAME, num_pairs, figures).to_dict()


async def _measured(
    off: Stack, on: Stack, sink: Collector, num_pairs: int, progress: Progress
) -> tuple[Pairs, Pairs]:
    doors = {"off": Door(off.gateway_grpc), "on": Door(on.gateway_grpc)}
    stacks = {"off": off, "on": on}
    alive, dead = Pairs(), Pairs()
    for name in doors:
        await _asked(doors[name], WARM_UP_S)  # connections, caches
    for index in range(num_pairs):
        if index == num_pairs // 2:
            sink.close()
            progress("the collector is dead from here on")
        order = ("off", "on") if index % 2 == 0 else ("on", "off")
        pairs = alive if index < num_pairs // 2 else dead
        pairs.rounds.append(await _pair(doors, stacks, order))
        if (index + 1) % SAY_EVERY == 0:
            progress(
                f"pair {index + 1} of {num_pairs}: processor time {cpu_ratio(pairs.rounds):.3f} of off's"
            )
    for door in doors.values():
        await door.channel.close()
    return alive, dead


async def _pair(
    doors: dict[str, Door], stacks: dict[str, Stack], order: tuple[str, str]
) -> tuple[Round, Round]:
    before_s = {name: stack_cpu_s(stack) for name, stack in stacks.items()}
    asked = {name: await _asked(doors[name], ROUND_S) for name in order}
    off, on = (
        Round(*asked[name], cpu_s=stack_cpu_s(stacks[name]) - before_s[name]) for name in ("off", "on")
    )
    return off, on


async def _asked(door: Door, round_s: float) -> tuple[int, int, float]:
    """Calls, those of them that failed, seconds."""
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

    began_s = time.monotonic()
    await asyncio.gather(*(caller() for _ in range(NUM_CALLERS)))
    return sum(counts.values()), counts["failed"], time.monotonic() - began_s


def stack_cpu_s(stack: Stack) -> float:
    return sum(cpu_s(stack.pids[name]) for name in PROCESSES)


def cpu_ratio(rounds: Sequence[tuple[Round, Round]]) -> float:
    """A call's processor time, on / off."""
    off, on = ([pair[index] for pair in rounds] for index in (0, 1))
    return (sum(each.cpu_s for each in on) / sum(each.num_calls for each in on)) / (
        sum(each.cpu_s for each in off) / sum(each.num_calls for each in off)
    )


def throughput_ratio(rounds: Sequence[tuple[Round, Round]]) -> float:
    """Calls a second, on / off."""
    off, on = ([pair[index] for pair in rounds] for index in (0, 1))
    return (sum(each.num_calls for each in on) / sum(each.seconds for each in on)) / (
        sum(each.num_calls for each in off) / sum(each.seconds for each in off)
    )


def figure_of(pairs: Pairs, ratio: Ratio, seed: int = 7) -> Figure:
    """Of all pairs, with the bounds of its 90 % interval by the percentile bootstrap."""
    drawn = random.Random(seed)
    rounds = pairs.rounds
    found = sorted(ratio(drawn.choices(rounds, k=len(rounds))) for _ in range(NUM_RESAMPLES))
    return Figure(ratio(rounds), "x", found[NUM_RESAMPLES // 20], found[-NUM_RESAMPLES // 20 - 1])


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
