"""Batching of `embed`: what many callers gain over one, and over fixed batches when the load comes in waves.

Closed loop, 64 callers of one text a call:
- `batch64_over_batch1`: texts per second of 64 callers / of one caller, 16 tokens a text.
- `batch64_over_batch1_N_tokens`: the same for texts of N tokens.
- `batch_sizes`: how often Triton's statistics saw each batch size for the 64 callers at 16 tokens; `mean_batch`.
- `share_of_bare_torch`: texts per second of 64 callers / of torch alone, without Triton, in batches of the very
  sizes that formed in that run. The 64 callers compute on the same cores.
- `share_of_bare_torch_cpu`: CPU time a text of torch alone / of Triton, stubs, node and worker together; callers
  are not counted, and what else the machine does matters less.

Open loop: `dynamic_over_fixed_throughput` and what belongs to it: see `benchmarks.fixed_batching`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.clients import TritonLoad, closed_loop
from benchmarks.fixed_batching import FULL_BATCH, FixedBatch, WaveScale, measure_waves, write_fixed
from benchmarks.node import cpu_s_of_trees
from benchmarks.reference import Reference
from benchmarks.report import Figure, Report
from benchmarks.wave import Outcome, send_wave
from contracts.stack import Stack, tidegate_home
from tidegate.testing import running_stack

NAME = "batching"
LENGTHS = (8, 16, 32, 64, 128)
HEADLINE_TOKENS = 16
NUM_CALLERS = 64
SPECIAL_TOKENS = 2
"""[CLS] and [SEP] belong to a text's length."""
DYNAMIC = "embed"

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Scale:
    """How long it takes: the whole at most 10 minutes, quick 3."""

    num_calls: int
    waves: WaveScale

    @property
    def runs(self) -> int:
        return self.waves.runs


WHOLE = Scale(
    512, WaveScale(3, (8, 16, 32), (5, 15, 40), search_s=3.0, search_steps=4, wave_s=6.0, wave_steps=5)
)
QUICK = Scale(192, WaveScale(1, (16, 32), (5, 20), search_s=1.5, search_steps=3, wave_s=3.0, wave_steps=4))


@dataclass
class Rates:
    """Texts per second, a value per run."""

    one_caller: list[float] = field(default_factory=list)
    many_callers: list[float] = field(default_factory=list)
    bare_torch: list[float] = field(default_factory=list)
    cpu_shares: list[float] = field(default_factory=list)
    batch_sizes: dict[int, int] = field(default_factory=dict)

    @property
    def gains(self) -> list[float]:
        return [many / one for many, one in zip(self.many_callers, self.one_caller, strict=True)]


def text_of(num_tokens: int, index: int) -> str:
    """A text of exactly `num_tokens` tokens; single digits are one token each."""
    return " ".join(str((index + i) % 10) for i in range(num_tokens - SPECIAL_TOKENS))


async def rate(
    address: str, num_callers: int, num_calls: int, num_tokens: int
) -> tuple[float, dict[int, int]]:
    """Texts per second, and how often Triton ran each batch size for them."""
    async with TritonLoad(address) as load:
        before = await load.batch_sizes(DYNAMIC)
        started_s = time.monotonic()
        await closed_loop(num_callers, num_calls, lambda i: load.embed(DYNAMIC, [text_of(num_tokens, i)]))
        seconds = time.monotonic() - started_s
        after = await load.batch_sizes(DYNAMIC)
    counts = {size: count - before.get(size, 0) for size, count in sorted(after.items())}
    return num_calls / seconds, {size: count for size, count in counts.items() if count}


def run(quick: bool, progress: Progress) -> dict[str, Any]:
    scale = QUICK if quick else WHOLE
    rates = {length: Rates() for length in LENGTHS}
    folder = tidegate_home() / "models" / "all-minilm-l6-v2"
    with Reference(folder) as reference, serving(scale.waves.candidates) as stack:
        asyncio.run(rate(stack.triton_grpc, NUM_CALLERS, 64, HEADLINE_TOKENS))
        for index in range(scale.runs):
            for length in LENGTHS:
                progress(f"run {index + 1} of {scale.runs}: texts of {length} tokens")
                _measure(rates[length], reference, stack, length, scale.num_calls)
        bare = _bare(reference, HEADLINE_TOKENS, [FULL_BATCH] * 8)
        send = functools.partial(_send, stack.triton_grpc)
        waves = measure_waves(scale.waves, DYNAMIC, bare["num_texts"] / bare["seconds"], send, progress)
    return Report(NAME, scale.runs, {**_figures(rates), **waves}).to_dict()


@contextlib.contextmanager
def serving(candidates: list[FixedBatch]) -> Iterator[Stack]:
    """A stack with `embed` as it ships and a model for each candidate, all over one copy of the weights."""
    with contextlib.ExitStack() as stack:
        repository = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tg-bench-")))
        for candidate in candidates:
            write_fixed(repository, DYNAMIC, candidate)
        names = [DYNAMIC, *(candidate.name for candidate in candidates)]
        options = itertools.chain.from_iterable(("--model", name) for name in names)
        running = stack.enter_context(
            running_stack("--repository", str(repository), "--no-gateway", "--spares", "embed=0", *options)
        )
        yield running.stack


def _measure(rates: Rates, reference: Reference, stack: Stack, length: int, num_calls: int) -> None:
    one, _ = asyncio.run(rate(stack.triton_grpc, 1, num_calls // 8, length))
    served = (stack.pids["node"], stack.pids["tritonserver"])
    cpu_s = cpu_s_of_trees(served)
    many, sizes = asyncio.run(rate(stack.triton_grpc, NUM_CALLERS, num_calls, length))
    cpu_s = cpu_s_of_trees(served) - cpu_s
    formed = [size for size, count in sizes.items() for _ in range(count)]
    bare = _bare(reference, length, formed)
    rates.one_caller.append(one)
    rates.many_callers.append(many)
    rates.bare_torch.append(bare["num_texts"] / bare["seconds"])
    rates.cpu_shares.append(bare["cpu_s"] / cpu_s)
    for size, count in sizes.items():
        rates.batch_sizes[size] = rates.batch_sizes.get(size, 0) + count


def _bare(reference: Reference, length: int, sizes: list[int]) -> dict[str, Any]:
    """Torch alone in batches of these sizes."""
    return reference.ask("embed", texts=[text_of(length, i) for i in range(sum(sizes))], batch_sizes=sizes)


def _send(address: str, model: str, times: list[float], bound_s: float) -> Outcome:
    async def send() -> Outcome:
        async with TritonLoad(address) as load:
            await load.embed(model, [text_of(HEADLINE_TOKENS, 0)])  # the connection is no part of it
            return await send_wave(times, lambda i: load.embed(model, [text_of(HEADLINE_TOKENS, i)]), bound_s)

    return asyncio.run(send())


def _figures(rates: dict[int, Rates]) -> dict[str, Figure]:
    head = rates[HEADLINE_TOKENS]
    sizes = [size for size, count in head.batch_sizes.items() for _ in range(count)]
    shares = [many / bare for many, bare in zip(head.many_callers, head.bare_torch, strict=True)]
    figures = {
        "batch64_over_batch1": Figure.of_runs(head.gains, "ratio"),
        "texts_per_s_1": Figure.of_runs(head.one_caller, "texts/s"),
        "texts_per_s_64": Figure.of_runs(head.many_callers, "texts/s"),
        "share_of_bare_torch": Figure.of_runs(shares, "ratio"),
        "share_of_bare_torch_cpu": Figure.of_runs(head.cpu_shares, "ratio"),
        "mean_batch": Figure(sum(sizes) / len(sizes), "texts", min(sizes), max(sizes)),
        "batch_sizes": Figure(
            {str(size): sizes.count(size) for size in sorted(set(sizes))}, "batches by size"
        ),
    }
    for length, measured in rates.items():
        figures[f"batch64_over_batch1_{length}_tokens"] = Figure.of_runs(measured.gains, "ratio")
    return figures
