"""Text generation through the whole stack, against `transformers` alone on the same weights and cores.

- `tokens_per_s_N`: output tokens per second of N concurrent streams through Triton's gRPC port, all started at
  once, exactly 64 tokens each; the time for the prompts is in it.
- `single_over_transformers`: tokens_per_s_1 / tokens per second of `transformers` `generate`, one prompt at a time.
- `speedup_16`: tokens_per_s_16 / that same figure.
- `triton_share_of_engine`: tokens_per_s_16 / tokens per second of the engine alone in one process, 16 at once.

Peers are servers that already run: TIDEGATE_BENCH_VLLM_CPU and TIDEGATE_BENCH_LLAMA_CPP name their OpenAI base URL
("http://127.0.0.1:8080/v1").
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx

from benchmarks.clients import Streamed, TritonLoad
from benchmarks.reference import Reference
from benchmarks.report import Figure, Report
from benchmarks.statistics import percentile
from contracts.stack import tidegate_home
from tidegate.testing import running_stack

NAME = "generate"
MAX_TOKENS = 64
CONCURRENCIES = (1, 16, 64)
PEERS = {"vllm-cpu": "TIDEGATE_BENCH_VLLM_CPU", "llama.cpp": "TIDEGATE_BENCH_LLAMA_CPP"}
GREEDY = {"max_tokens": MAX_TOKENS, "temperature": 0, "ignore_eos": True}

Progress = Callable[[str], None]


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
    ours: dict[int, list[Load]] = {count: [] for count in CONCURRENCIES}
    alone: list[float] = []
    engine: list[float] = []
    with Reference(folder) as reference, running_stack("--pool-bytes", "4GiB") as stack:
        _warm_up(reference, stack.stack.triton_grpc)
        for index in range(runs):
            progress(f"run {index + 1} of {runs}: transformers")
            alone.append(_rate(reference.ask("generate", prompts=prompts(1), max_tokens=MAX_TOKENS)))
            for count in CONCURRENCIES:
                progress(f"run {index + 1} of {runs}: {count} streams through Triton")
                ours[count].append(asyncio.run(burst(stack.stack.triton_grpc, count)))
            progress(f"run {index + 1} of {runs}: the engine alone")
            engine.append(_rate(reference.ask("engine", prompts=prompts(16), max_tokens=MAX_TOKENS)))
    peers, skipped = _peers(progress)
    return Report(NAME, runs, _figures(ours, alone, engine), peers, skipped).to_dict()


def _warm_up(reference: Reference, address: str) -> None:
    reference.ask("generate", prompts=prompts(1), max_tokens=4)
    reference.ask("engine", prompts=prompts(2), max_tokens=4)
    asyncio.run(burst(address, 2))


def _rate(answer: dict[str, Any]) -> float:
    return float(answer["num_tokens"]) / float(answer["seconds"])


def _figures(ours: dict[int, list[Load]], alone: list[float], engine: list[float]) -> dict[str, Figure]:
    rates = {count: [load.tokens_per_s for load in loads] for count, loads in ours.items()}
    figures = {f"tokens_per_s_{count}": Figure.of_runs(rate, "tokens/s") for count, rate in rates.items()}
    figures["transformers_tokens_per_s"] = Figure.of_runs(alone, "tokens/s")
    figures["engine_tokens_per_s_16"] = Figure.of_runs(engine, "tokens/s")
    # Pairwise within a run, so that a noisy minute hits both sides of a ratio.
    figures["single_over_transformers"] = Figure.of_runs(_ratios(rates[1], alone), "ratio")
    figures["speedup_16"] = Figure.of_runs(_ratios(rates[16], alone), "ratio")
    figures["triton_share_of_engine"] = Figure.of_runs(_ratios(rates[16], engine), "ratio")
    for percent in (50, 99):
        figures[f"ttft_p{percent}_ms_16"] = Figure.of_runs(
            [percentile(x.ttft_ms, percent) for x in ours[16]], "ms"
        )
        figures[f"tpot_p{percent}_ms_16"] = Figure.of_runs(
            [percentile(x.tpot_ms, percent) for x in ours[16]], "ms"
        )
    return figures


def _ratios(over: list[float], under: list[float]) -> list[float]:
    return [a / b for a, b in zip(over, under, strict=True)]


def _peers(progress: Progress) -> tuple[dict[str, dict[str, Figure]], dict[str, str]]:
    peers: dict[str, dict[str, Figure]] = {}
    skipped: dict[str, str] = {}
    for name, variable in PEERS.items():
        if not (base_url := os.environ.get(variable)):
            skipped[name] = f"no server named; set {variable} to its OpenAI base URL"
            continue
        progress(f"peer {name}")
        try:
            loads = {count: asyncio.run(openai_burst(base_url.rstrip("/"), count)) for count in CONCURRENCIES}
        except (httpx.HTTPError, LookupError, RuntimeError, ValueError) as exc:
            skipped[name] = f"{base_url}: {type(exc).__name__}: {exc}"
            continue
        peers[name] = {
            f"tokens_per_s_{count}": Figure.of_runs([load.tokens_per_s], "tokens/s")
            for count, load in loads.items()
        }
    return peers, skipped
