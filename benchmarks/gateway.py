"""What the gateway costs: latency added over Triton direct, beside a bare pass-through and LiteLLM's proxy.

Triton, gateway, pass-through and sender share this machine. Rounds go to Triton direct, to the bare pass-through in
grpc.aio and to the gateway's gRPC port in turn, so that what else the machine does meets all of them.

- `unary_added_ms`: median echo at 100 requests/s through the gateway - median direct; the median of the rounds.
- `unary_p99_added_ms`: the same of the 99th percentiles, over the echoes of all rounds.
- `chunk_added_ms`: of a streamed response, from its leaving the model to its arrival.
- `unary_over_bare`, `chunk_over_bare`: ours / what the bare pass-through (the peer `bare`) adds in the same round;
  the median of the rounds.
- `unary_cpu_ms`, `chunk_cpu_ms`: processor time of the proxy for one of them, which a busy machine changes least.
- `rss_streams_mb`: the gateway's memory with 1,000 idle and 200 active streams; `rss_mb` before them.
- The peer `litellm` speaks HTTP alone and reaches Triton over HTTP: what it adds to an echo is over the same text
  sent to Triton's HTTP endpoint, at 20 requests/s.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks import cpu_clock
from benchmarks.gateway_bare import READY_LINE
from benchmarks.gateway_litellm import direct_call, litellm_proxy, posts_s, proxied_call
from benchmarks.gateway_load import Door
from benchmarks.peers import PeerUnavailable
from benchmarks.report import Figure, Report
from benchmarks.statistics import median, percentile
from contracts.stack import Stack
from tidegate.testing import running_stack

NAME = "gateway"
REPOSITORY = Path(__file__).parent / "gateway_repository"
MODELS = ("echo", "ticks", "say")
RATE_PER_S = 100.0
LITELLM_RATE_PER_S = 20.0
"""At 100 it takes 9 ms of processor time a call, so on two shared cores it falls behind without end."""
NUM_STREAMS, NUM_CHUNKS, CHUNK_EVERY_S = 4, 60, 0.04
"""About 100 responses/s as well."""
NUM_IDLE, NUM_ACTIVE = 1000, 200
ACTIVE_EVERY_S = 2.0
MB = 1_000_000

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Side:
    """Something that is asked."""

    address: str
    pid: int | None
    """Of a proxy."""

    def cpu_s(self) -> float:
        return 0.0 if self.pid is None else cpu_clock.cpu_s(self.pid)


@dataclass
class Samples:
    """Seconds, a list a round."""

    unary: list[list[float]] = field(default_factory=list)
    chunk: list[list[float]] = field(default_factory=list)
    unary_cpu_s: list[float] = field(default_factory=list)
    """Of its process, for one echo; nothing for Triton itself."""
    chunk_cpu_s: list[float] = field(default_factory=list)


def run(quick: bool, progress: Progress) -> dict[str, Any]:
    runs, round_s = (3, 2.0) if quick else (9, 5.0)
    options = [*("--repository", str(REPOSITORY), "--no-scaler"), *(f"--model={name}" for name in MODELS)]
    with running_stack(*options) as running, bare_proxy(running.stack.triton_grpc) as (bare, bare_pid):
        sides = {
            "direct": Side(running.stack.triton_grpc, None),
            "bare": Side(bare, bare_pid),
            "gateway": Side(running.stack.gateway_grpc, running.stack.pids["gateway"]),
        }
        samples = asyncio.run(_rounds(sides, runs, round_s, progress))
        memory = asyncio.run(_memory(running.stack, progress))
        peers, skipped = _litellm(running.stack.triton_http, runs, round_s, progress)
    figures = {**added(samples["direct"], samples["gateway"]), **over_bare(samples), **memory}
    peers["bare"] = added(samples["direct"], samples["bare"])
    return Report(NAME, runs, figures, peers, skipped).to_dict()


def _litellm(
    triton_http: str, runs: int, round_s: float, progress: Progress
) -> tuple[dict[str, dict[str, Figure]], dict[str, str]]:
    """Peers and skipped."""
    try:
        with litellm_proxy(triton_http) as (url, pid, headers):
            side = Side(url, pid)
            samples = asyncio.run(_posts(triton_http, side, headers, runs, round_s, progress))
    except (PeerUnavailable, httpx.HTTPError) as exc:
        return {}, {"litellm": str(exc)}
    return {"litellm": added(*samples)}, {}


async def _posts(
    triton_http: str, side: Side, headers: dict[str, str], runs: int, round_s: float, progress: Progress
) -> tuple[Samples, Samples]:
    direct, through = Samples(), Samples()
    await posts_s(*proxied_call(side.address), headers, LITELLM_RATE_PER_S, 1.0)
    for _ in range(runs):
        direct.unary.append(await posts_s(*direct_call(triton_http), {}, LITELLM_RATE_PER_S, round_s))
        before_s = side.cpu_s()
        through.unary.append(await posts_s(*proxied_call(side.address), headers, LITELLM_RATE_PER_S, round_s))
        through.unary_cpu_s.append((side.cpu_s() - before_s) / len(through.unary[-1]))
        progress(
            f"litellm: {median(through.unary[-1]) * 1000:.1f} ms, direct {median(direct.unary[-1]) * 1000:.1f}"
        )
    return direct, through


async def _rounds(
    sides: dict[str, Side], runs: int, round_s: float, progress: Progress
) -> dict[str, Samples]:
    doors = {name: Door(side.address) for name, side in sides.items()}
    samples = {name: Samples() for name in doors}
    for door in doors.values():
        await door.echoes_s(RATE_PER_S, 1.0)
        await door.chunks_s(NUM_STREAMS, 10, CHUNK_EVERY_S)
    for index in range(runs):
        for name, door in doors.items():
            side, made = sides[name], samples[name]
            before_s = side.cpu_s()
            made.unary.append(await door.echoes_s(RATE_PER_S, round_s))
            between_s = side.cpu_s()
            made.chunk.append(await door.chunks_s(NUM_STREAMS, NUM_CHUNKS, CHUNK_EVERY_S))
            if side.pid is not None:
                made.unary_cpu_s.append((between_s - before_s) / len(made.unary[-1]))
                made.chunk_cpu_s.append((side.cpu_s() - between_s) / len(made.chunk[-1]))
        last = {
            name: f"{median(each.unary[-1]) * 1000:.2f}/{median(each.chunk[-1]) * 1000:.2f}"
            for name, each in samples.items()
        }
        progress(f"round {index + 1} of {runs}: echo/chunk in ms {last}")
    for door in doors.values():
        await door.channel.close()
    return samples


def added(direct: Samples, through: Samples) -> dict[str, Figure]:
    """What `through` takes more than `direct`."""
    p99s_s = [percentile([value for each in side.unary for value in each], 99) for side in (through, direct)]
    made = {
        "unary_added_ms": Figure.of_runs(differences_ms(direct.unary, through.unary), "ms"),
        "unary_p99_added_ms": Figure((p99s_s[0] - p99s_s[1]) * 1000, "ms"),
        "unary_cpu_ms": Figure.of_runs([each * 1000 for each in through.unary_cpu_s], "ms"),
    }
    if through.chunk:
        made["chunk_added_ms"] = Figure.of_runs(differences_ms(direct.chunk, through.chunk), "ms")
        made["chunk_cpu_ms"] = Figure.of_runs([each * 1000 for each in through.chunk_cpu_s], "ms")
    return made


def over_bare(samples: dict[str, Samples]) -> dict[str, Figure]:
    """A round in which the bare pass-through added nothing measurable says nothing."""
    made = {}
    for kind in ("unary", "chunk"):
        direct, bare, ours = (getattr(samples[name], kind) for name in ("direct", "bare", "gateway"))
        pairs = zip(differences_ms(direct, ours), differences_ms(direct, bare), strict=True)
        if ratios := [mine / least for mine, least in pairs if least > 0]:
            made[f"{kind}_over_bare"] = Figure.of_runs(ratios, "x")
    return made


def differences_ms(direct: list[list[float]], through: list[list[float]]) -> list[float]:
    """Of the medians, a round each."""
    return [(median(far) - median(near)) * 1000 for near, far in zip(direct, through, strict=True)]


async def _memory(stack: Stack, progress: Progress) -> dict[str, Figure]:
    """Raises RuntimeError when a stream breaks."""
    gateway, door = psutil.Process(stack.pids["gateway"]), Door(stack.gateway_grpc)
    before_mb = gateway.memory_info().rss / MB
    progress(f"{NUM_IDLE} idle and {NUM_ACTIVE} active streams")
    async with door.idle(NUM_IDLE):
        active = [asyncio.create_task(door.ticks_s(5, ACTIVE_EVERY_S)) for _ in range(NUM_ACTIVE)]
        await asyncio.sleep(2.5 * ACTIVE_EVERY_S)
        with_streams_mb = gateway.memory_info().rss / MB
        await asyncio.gather(*active)
    await door.channel.close()
    return {"rss_mb": Figure(before_mb, "MB"), "rss_streams_mb": Figure(with_streams_mb, "MB")}


@contextlib.contextmanager
def bare_proxy(triton: str) -> Iterator[tuple[str, int]]:
    """Its address and pid, until the block ends. Raises RuntimeError when it does not start."""
    command = [sys.executable, "-m", "benchmarks.gateway_bare", triton]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline() if process.stdout else ""
            if not line.startswith(READY_LINE):
                raise RuntimeError(f"the bare pass-through did not start: {line!r}")
            yield f"127.0.0.1:{line.split()[-1]}", process.pid
        finally:
            process.terminate()
