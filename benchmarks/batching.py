"""Batching of `embed`: what many callers gain over one, and over fixed batches when the load comes in waves.

Closed loop, 64 callers of one text a call:
- `batch64_over_batch1`: texts per second of 64 callers / of one caller, 16 tokens a text.
- `batch64_over_batch1_N_tokens`: the same for texts of N tokens.
- `batch_sizes`: how often Triton's statistics saw each batch size for the 64 callers at 16 tokens; `mean_batch`.
- `share_of_bare_torch`: texts per second of 64 callers / of torch alone, without Triton, in batches of the very
  sizes that formed in that run. The 64 callers compute on the same cores.
- `share_of_bare_torch_cpu`: CPU time a text of torch alone / of Triton, stubs, node and worker together; callers
  are not counted, and what else the machine does matters less.

Open loop, waves of 3 x, texts of 16 tokens (`benchmarks.wave`). A figure is the highest rate at the crest at which
99 % of the calls are answered within the bound, three times what bare torch takes for a batch of 32.

Fixed means: a batch closes when N texts are there or when its first has waited for the flush time, and then it is
that batch. It waits its turn behind those closed before it and takes no more texts, however long the worker is
busy; no batch starts early because the worker is idle. A queue with a size and a timer in front of a model server
does just that. Both sides have the same callers, Triton and workers; a flushed batch computes only the texts that
it has (padded to N it would cost more). N and flush time stay as they are through the wave. Who chooses them, and
knowing what, decides the result, so it is said twice:
- `dynamic_over_fixed_throughput`: chosen in hindsight, by search on such waves: the best that fixed batches can do.
  At its limit every batcher runs full batches, so this cannot be far from 1; what hindsight costs is latency at all
  other times: `dynamic_p50_ms`, `fixed_p50_ms`, on a wave with half the crest that dynamic bears.
- `dynamic_over_mean_tuned_throughput`: chosen as operators do who see the mean load and not the crest: the lowest
  99th percentile at a steady rate, the mean of the highest wave that the dynamic side bears.
- `fixed_best_size`, `fixed_best_flush_ms`, `mean_tuned_size`, `mean_tuned_flush_ms`: what was chosen.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from benchmarks.clients import TritonLoad, closed_loop
from benchmarks.node import cpu_s_of_trees
from benchmarks.reference import Reference
from benchmarks.report import Figure, Report
from benchmarks.statistics import median, percentile
from benchmarks.wave import (
    MEAN_OVER_CREST,
    Outcome,
    arrivals,
    highest_bearable,
    send_wave,
    steady_arrivals,
)
from contracts.stack import Stack, tidegate_home
from tidegate.repository import read_config, shipped
from tidegate.testing import running_stack

NAME = "batching"
LENGTHS = (8, 16, 32, 64, 128)
HEADLINE_TOKENS = 16
NUM_CALLERS = 64
SPECIAL_TOKENS = 2
"""[CLS] and [SEP] belong to a text's length."""
DYNAMIC = "embed"
FULL_BATCH = 32
BOUND_IN_BATCHES = 3.0
QUIET_SHARE = 0.5
"""Of the crest that dynamic bears: where latencies are compared."""

CLOSING_MODEL = '''\
"""`embed`, but a batch that Triton has formed is sent at once: it grows no more while the worker is busy."""

from python_backend.bridge.asking import WorkerOfBatches
from python_backend.bridge.embed import EmbedModel
from python_backend.messages import EmbedResult


class ClosedBatches(WorkerOfBatches):
    def _wait_for_end(self, asked):
        pass


class TritonPythonModel(EmbedModel):
    def initialize(self, args):
        self._worker = ClosedBatches(args, EmbedResult)
'''

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Scale:
    """How long it takes: the whole at most 10 minutes, quick 3."""

    runs: int
    num_calls: int
    sizes: tuple[int, ...]
    flushes_ms: tuple[int, ...]
    search_s: float
    search_steps: int
    wave_s: float
    wave_steps: int


WHOLE = Scale(3, 512, (8, 16, 32), (5, 15, 40), search_s=3.0, search_steps=4, wave_s=6.0, wave_steps=5)
QUICK = Scale(1, 192, (16, 32), (5, 20), search_s=1.5, search_steps=3, wave_s=3.0, wave_steps=4)


@dataclass(frozen=True)
class FixedBatch:
    size: int
    flush_ms: int

    @property
    def name(self) -> str:
        return f"fixed-{self.size}-{self.flush_ms}"


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


@dataclass
class Crests:
    """Highest bearable rates at the crest, texts per second, a value per run."""

    bound_s: float
    best: FixedBatch
    mean_tuned: FixedBatch
    dynamic: list[float] = field(default_factory=list)
    fixed: list[float] = field(default_factory=list)
    tuned: list[float] = field(default_factory=list)
    dynamic_p50_s: list[float] = field(default_factory=list)
    fixed_p50_s: list[float] = field(default_factory=list)


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
    candidates = [FixedBatch(*pair) for pair in itertools.product(scale.sizes, scale.flushes_ms)]
    rates = {length: Rates() for length in LENGTHS}
    folder = tidegate_home() / "models" / "all-minilm-l6-v2"
    with Reference(folder) as reference, serving(candidates) as stack:
        address = stack.triton_grpc
        asyncio.run(rate(address, NUM_CALLERS, 64, HEADLINE_TOKENS))
        for index in range(scale.runs):
            for length in LENGTHS:
                progress(f"run {index + 1} of {scale.runs}: texts of {length} tokens")
                _measure(rates[length], reference, stack, length, scale.num_calls)
        crests = _measure_waves(scale, candidates, reference, address, progress)
    return Report(NAME, scale.runs, {**_figures(rates), **_wave_figures(crests)}).to_dict()


@contextlib.contextmanager
def serving(candidates: list[FixedBatch]) -> Iterator[Stack]:
    """A stack with `embed` as it ships and a model for each candidate, all over one copy of the weights."""
    with contextlib.ExitStack() as stack:
        repository = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tg-bench-")))
        for candidate in candidates:
            write_fixed(repository, candidate)
        names = [DYNAMIC, *(candidate.name for candidate in candidates)]
        options = itertools.chain.from_iterable(("--model", name) for name in names)
        running = stack.enter_context(
            running_stack("--repository", str(repository), "--no-gateway", "--spares", "embed=0", *options)
        )
        yield running.stack


def write_fixed(repository: Path, batch: FixedBatch) -> None:
    """The shipped entry with fixed batching and a name of its own."""
    entry = repository / batch.name
    shutil.copytree(shipped() / DYNAMIC, entry, ignore=shutil.ignore_patterns("__pycache__"))
    config = read_config(entry)
    config.name = batch.name
    config.max_batch_size = batch.size
    config.dynamic_batching.preferred_batch_size[:] = [batch.size]
    config.dynamic_batching.max_queue_delay_microseconds = 1000 * batch.flush_ms
    config.instance_group[0].name = config.instance_group[0].host_policy = f"{batch.name}-0"
    (entry / "config.pbtxt").write_text(text_format.MessageToString(config))
    (entry / "1" / "model.py").write_text(CLOSING_MODEL)


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


def _measure_waves(
    scale: Scale, candidates: list[FixedBatch], reference: Reference, address: str, progress: Progress
) -> Crests:
    bare = _bare(reference, HEADLINE_TOKENS, [FULL_BATCH] * 8)
    capacity = bare["num_texts"] / bare["seconds"]
    bound_s = BOUND_IN_BATCHES * FULL_BATCH / capacity

    def crest(model: str, seconds: float, num_steps: int, seed: int) -> float:
        progress(f"waves of {seconds:.0f} s on {model}, 99 % within {1000 * bound_s:.0f} ms")
        rng = random.Random(seed)  # the same arrivals for all sides

        def bears(per_s: float) -> bool:
            return _send(address, model, arrivals(per_s, seconds, rng), bound_s).has_held

        return highest_bearable(bears, 0.05 * capacity, 1.2 * capacity, num_steps)

    def p99_s(model: str, per_s: float) -> float:
        progress(f"{model} at {per_s:.0f} texts/s")
        times = steady_arrivals(per_s, scale.search_s, random.Random(0))
        outcome = _send(address, model, times, bound_s)
        return percentile(outcome.latencies_s, 99) if outcome.has_held else math.inf

    def p50_s(model: str, per_s: float) -> float:
        progress(f"{model}: a wave of {per_s:.0f} texts/s")
        return median(
            _send(address, model, arrivals(per_s, scale.wave_s, random.Random(0)), math.inf).latencies_s
        )

    bearable = crest(DYNAMIC, scale.search_s, scale.search_steps, 0)
    in_hindsight = {each: crest(each.name, scale.search_s, scale.search_steps, 0) for each in candidates}
    at_mean = {each: p99_s(each.name, bearable * MEAN_OVER_CREST) for each in candidates}
    best, tuned = max(candidates, key=in_hindsight.__getitem__), min(candidates, key=at_mean.__getitem__)
    crests = Crests(bound_s, best, tuned)
    for index in range(scale.runs):
        crests.dynamic.append(crest(DYNAMIC, scale.wave_s, scale.wave_steps, index + 1))
        crests.fixed.append(crest(best.name, scale.wave_s, scale.wave_steps, index + 1))
        crests.tuned.append(crest(tuned.name, scale.wave_s, scale.wave_steps, index + 1))
        quiet = QUIET_SHARE * crests.dynamic[-1]
        crests.dynamic_p50_s.append(p50_s(DYNAMIC, quiet))
        crests.fixed_p50_s.append(p50_s(best.name, quiet))
    return crests


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


def _wave_figures(crests: Crests) -> dict[str, Figure]:
    def over(others: list[float]) -> Figure:
        ratios = [dynamic / other for dynamic, other in zip(crests.dynamic, others, strict=True)]
        return Figure.of_runs(ratios, "ratio")

    return {
        "dynamic_over_fixed_throughput": over(crests.fixed),
        "dynamic_over_mean_tuned_throughput": over(crests.tuned),
        "dynamic_crest_per_s": Figure.of_runs(crests.dynamic, "texts/s"),
        "fixed_crest_per_s": Figure.of_runs(crests.fixed, "texts/s"),
        "mean_tuned_crest_per_s": Figure.of_runs(crests.tuned, "texts/s"),
        "fixed_best_size": Figure(crests.best.size, "texts"),
        "fixed_best_flush_ms": Figure(crests.best.flush_ms, "ms"),
        "mean_tuned_size": Figure(crests.mean_tuned.size, "texts"),
        "mean_tuned_flush_ms": Figure(crests.mean_tuned.flush_ms, "ms"),
        "dynamic_p50_ms": Figure.of_runs([1000 * each for each in crests.dynamic_p50_s], "ms"),
        "fixed_p50_ms": Figure.of_runs([1000 * each for each in crests.fixed_p50_s], "ms"),
        "p99_bound_ms": Figure(1000 * crests.bound_s, "ms"),
    }
