"""What a shared system prompt of 512 tokens costs the second time, and what looking for it costs when it is new.

Through Triton, two idle instances, one request at a time, a new system prompt each round:

- `ttft_hit_over_miss`: time to first token of a request whose system prompt the same instance has computed / of the
  round's first request.
- `ttft_hit_other_instance_over_miss`: the same where only the other instance has computed it.
- `ttft_miss_ms`, `ttft_hit_ms`, `ttft_hit_other_instance_ms`: the times themselves, from the client's side.

The engine in one process, the pool's books in another, 16 streams of 128 tokens, all prompts new:

- `overhead_no_hit`: CPU time of hashing, matching, publishing and dropping in the engine, and all of the
  book-keeping process's (its leases too) / CPU time of both processes.
- `cpu_caching_over_none`: CPU time of both processes with prefix blocks / without, runs in turn; noisier.
- `leased_step_over_other_p50_N`, `_p95_N`: duration of decode steps of N streams in which blocks were leased
  (mapped, zeroed, written for the first time) / of the steps between those.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers

from benchmarks.clients import Streamed, TritonLoad
from benchmarks.node import node_status
from benchmarks.reference import Reference
from benchmarks.report import Figure, Report
from benchmarks.statistics import percentile
from contracts.stack import Stack, tidegate_home
from scaler.acting.by_hand import scale
from tidegate.testing import running_stack

NAME = "prefix"
SYSTEM_TOKENS = 512
BLOCK_TOKENS = 16
STREAM_TOKENS = 128
"""More than admission reserves, so that streams lease while they decode."""
STREAMS = (1, 16)
SHORT = {"max_tokens": 2, "temperature": 0, "ignore_eos": True}
WORDS = (
    "tide",
    "gate",
    "harbour",
    "lantern",
    "seven",
    "copper",
    "under",
    "river",
    "quiet",
    "orange",
    "winter",
)

Progress = Callable[[str], None]


@dataclass
class Rounds:
    """Times to first token in ms; the entries of each list that belong to a hit are over their round's miss."""

    miss_ms: list[float] = field(default_factory=list)
    same_ms: list[float] = field(default_factory=list)
    other_ms: list[float] = field(default_factory=list)
    same_over_miss: list[float] = field(default_factory=list)
    other_over_miss: list[float] = field(default_factory=list)


@dataclass
class Engines:
    """Answers of PooledEngine.run, with prefix blocks and without, by number of streams."""

    caching: dict[int, list[dict[str, Any]]] = field(default_factory=lambda: {n: [] for n in STREAMS})
    none: dict[int, list[dict[str, Any]]] = field(default_factory=lambda: {n: [] for n in STREAMS})


def run(quick: bool, progress: Progress) -> dict[str, Any]:
    rounds, runs = (3, 1) if quick else (20, 5)
    folder = tidegate_home() / "models" / "smollm2-135m-instruct"
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    with running_stack("--spares", "chat=2", "--pool-bytes", "2GiB") as running:
        asyncio.run(scale(running.stack, "chat", 2, on_event=lambda _: None))
        seen = asyncio.run(_rounds(running.stack, tokenizer, rounds, progress))
    engines = _engines(folder, runs, progress)
    return Report(NAME, rounds, _ttft_figures(seen) | _engine_figures(engines)).to_dict()


# --- through Triton ---


async def _rounds(stack: Stack, tokenizer: tokenizers.Tokenizer, count: int, progress: Progress) -> Rounds:
    seen = Rounds()
    async with TritonLoad(stack.triton_grpc) as load:
        for number in range(count + 1):
            progress(f"round {number} of {count}: a new system prompt, three users")
            # Round 0 warms both instances up and counts for nothing.
            await _round(load, stack, system_prompt(tokenizer, number), seen if number else Rounds())
    return seen


async def _round(load: TritonLoad, stack: Stack, system: str, seen: Rounds) -> None:
    first, first_instance = await _ask(load, stack, system, "What does the tide do at noon?")
    if first.num_cached_tokens >= BLOCK_TOKENS * 2:
        raise RuntimeError(f"a new prompt had {first.num_cached_tokens} tokens cached; it was not new")
    seen.miss_ms.append(first.ttft_s * 1000)
    have_it = {first_instance}
    for question in ("Name three boats.", "How deep is the harbour?"):
        hit, instance = await _ask(load, stack, system, question)
        if hit.num_cached_tokens < SYSTEM_TOKENS - BLOCK_TOKENS:
            raise RuntimeError(f"of {SYSTEM_TOKENS} shared tokens {hit.num_cached_tokens} were cached")
        times, ratios = (
            (seen.same_ms, seen.same_over_miss)
            if instance in have_it
            else (seen.other_ms, seen.other_over_miss)
        )
        times.append(hit.ttft_s * 1000)
        ratios.append(hit.ttft_s / first.ttft_s)
        have_it.add(instance)


async def _ask(load: TritonLoad, stack: Stack, system: str, question: str) -> tuple[Streamed, str]:
    """The stream, and the instance that it landed on."""
    before = _landed(stack)
    prompt = f"{system}<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    stream = await load.stream("chat", prompt, SHORT, flags=("return_num_cached_tokens",))
    if stream.error:
        raise RuntimeError(f"a request failed: {stream.error}")
    (instance,) = (name for name, landed in _landed(stack).items() if landed > before[name])
    return stream, instance


def _landed(stack: Stack) -> dict[str, int]:
    instances = node_status(stack.node_socket).instances
    return {instance.instance: instance.landed for instance in instances if instance.model == "chat"}


def system_prompt(tokenizer: tokenizers.Tokenizer, seed: int) -> str:
    """At least SYSTEM_TOKENS tokens that no other seed's begins with."""
    draw = random.Random(seed)
    words = [f"<|im_start|>system\nRule {draw.randrange(10**9)}:"]
    while len(tokenizer.encode(" ".join(words)).ids) < SYSTEM_TOKENS:
        words += draw.choices(WORDS, k=8)
    return " ".join(words) + "<|im_end|>\n"


# --- the engine ---


def _engines(folder: Path, runs: int, progress: Progress) -> Engines:
    engines = Engines()
    with Reference(folder) as reference:
        _run_engine(reference, -1, 1, caching=True)
        for index in range(runs):
            for streams in STREAMS:
                progress(
                    f"run {index + 1} of {runs}: the engine, {streams} streams, prefix blocks on and off"
                )
                engines.caching[streams].append(_run_engine(reference, index, streams, caching=True))
                engines.none[streams].append(_run_engine(reference, index, streams, caching=False))
    return engines


def _run_engine(reference: Reference, run: int, streams: int, *, caching: bool) -> dict[str, Any]:
    # The length differs, so that not all streams fill a block in the same step.
    prompts = [f"{run} {streams} {index} tells of" + " waves" * (index + 8) for index in range(streams)]
    return reference.ask("pooled_engine", prompts=prompts, max_tokens=STREAM_TOKENS, caching=caching)


def overhead(answer: dict[str, Any]) -> float:
    """Of one run of PooledEngine, as the module has it."""
    return float(answer["caching_cpu_s"] + answer["desk_cpu_s"]) / _cpu_s(answer)


def _cpu_s(answer: dict[str, Any]) -> float:
    return float(answer["cpu_s"] + answer["desk_cpu_s"])


def leased_over_other(answers: list[dict[str, Any]], percent: float) -> float | None:
    """None: no step leased anything, or every one did."""
    steps = [step for answer in answers for step in _from_first_lease(answer["steps"])]
    leased = [seconds for seconds, is_leased in steps if is_leased]
    others = [seconds for seconds, is_leased in steps if not is_leased]
    return percentile(leased, percent) / percentile(others, percent) if leased and others else None


def _from_first_lease(steps: list[tuple[float, bool]]) -> list[tuple[float, bool]]:
    """Earlier ones have shorter histories, and would be faster for that alone."""
    return list(itertools.dropwhile(lambda step: not step[1], steps))


# --- figures ---


def _ttft_figures(seen: Rounds) -> dict[str, Figure]:
    values = {
        "ttft_hit_over_miss": (seen.same_over_miss, "ratio"),
        "ttft_hit_other_instance_over_miss": (seen.other_over_miss, "ratio"),
        "ttft_miss_ms": (seen.miss_ms, "ms"),
        "ttft_hit_ms": (seen.same_ms, "ms"),
        "ttft_hit_other_instance_ms": (seen.other_ms, "ms"),
    }
    return {name: Figure.of_runs(samples, unit) for name, (samples, unit) in values.items() if samples}


def _engine_figures(engines: Engines) -> dict[str, Figure]:
    busiest = max(STREAMS)
    caching, none = engines.caching[busiest], engines.none[busiest]
    figures = {
        "overhead_no_hit": Figure.of_runs([overhead(answer) for answer in caching], "share of CPU time"),
        "cpu_caching_over_none": Figure.of_runs(
            [_cpu_s(one) / _cpu_s(other) for one, other in zip(caching, none, strict=True)], "ratio"
        ),
    }
    for streams in STREAMS:
        answers = engines.caching[streams] + engines.none[streams]
        for percent in (50, 95):
            if (ratio := leased_over_other(answers, percent)) is not None:
                figures[f"leased_step_over_other_p{percent}_{streams}"] = Figure(ratio, "ratio")
    return figures
