"""Dynamic against fixed batches, under an open loop of one-text calls that comes in waves of 3 x (`wave`).

A figure is the highest rate at the crest at which 99 % of the calls are answered within the bound, three times what
the model alone takes for a batch of 32.

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

import itertools
import math
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from google.protobuf import text_format

from benchmarks.report import Figure
from benchmarks.statistics import median, percentile
from benchmarks.wave import MEAN_OVER_CREST, Outcome, arrivals, highest_bearable, steady_arrivals
from tidegate.repository import read_config, shipped

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

Send = Callable[[str, list[float], float], Outcome]
"""Calls of a model at these times, and the bound in seconds beyond which an answer is late."""
Progress = Callable[[str], None]


@dataclass(frozen=True)
class WaveScale:
    """How long it takes."""

    runs: int
    sizes: tuple[int, ...]
    flushes_ms: tuple[int, ...]
    search_s: float
    search_steps: int
    wave_s: float
    wave_steps: int

    @property
    def candidates(self) -> list[FixedBatch]:
        return [FixedBatch(*pair) for pair in itertools.product(self.sizes, self.flushes_ms)]


@dataclass(frozen=True)
class FixedBatch:
    size: int
    flush_ms: int

    @property
    def name(self) -> str:
        return f"fixed-{self.size}-{self.flush_ms}"


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


def write_fixed(repository: Path, model: str, batch: FixedBatch) -> None:
    """The shipped entry of `model` with fixed batching and a name of its own."""
    entry = repository / batch.name
    shutil.copytree(shipped() / model, entry, ignore=shutil.ignore_patterns("__pycache__"))
    config = read_config(entry)
    config.name = batch.name
    config.max_batch_size = batch.size
    config.dynamic_batching.preferred_batch_size[:] = [batch.size]
    config.dynamic_batching.max_queue_delay_microseconds = 1000 * batch.flush_ms
    config.instance_group[0].name = config.instance_group[0].host_policy = f"{batch.name}-0"
    (entry / "config.pbtxt").write_text(text_format.MessageToString(config))
    (entry / "1" / "model.py").write_text(CLOSING_MODEL)


def measure_waves(
    scale: WaveScale, model: str, capacity: float, send: Send, progress: Progress
) -> dict[str, Figure]:
    """`model` is the dynamic side, `capacity` what it computes alone in full batches, texts per second."""
    candidates = scale.candidates
    bound_s = BOUND_IN_BATCHES * FULL_BATCH / capacity

    def crest(name: str, seconds: float, num_steps: int, seed: int) -> float:
        progress(f"waves of {seconds:.0f} s on {name}, 99 % within {1000 * bound_s:.0f} ms")
        rng = random.Random(seed)  # the same arrivals for all sides

        def bears(per_s: float) -> bool:
            return send(name, arrivals(per_s, seconds, rng), bound_s).has_held

        return highest_bearable(bears, 0.05 * capacity, 1.2 * capacity, num_steps)

    def p99_s(name: str, per_s: float) -> float:
        progress(f"{name} at {per_s:.0f} texts/s")
        times = steady_arrivals(per_s, scale.search_s, random.Random(0))
        outcome = send(name, times, bound_s)
        return percentile(outcome.latencies_s, 99) if outcome.has_held else math.inf

    def p50_s(name: str, per_s: float) -> float:
        progress(f"{name}: a wave of {per_s:.0f} texts/s")
        return median(send(name, arrivals(per_s, scale.wave_s, random.Random(0)), math.inf).latencies_s)

    bearable = crest(model, scale.search_s, scale.search_steps, 0)
    in_hindsight = {each: crest(each.name, scale.search_s, scale.search_steps, 0) for each in candidates}
    at_mean = {each: p99_s(each.name, bearable * MEAN_OVER_CREST) for each in candidates}
    best, tuned = max(candidates, key=in_hindsight.__getitem__), min(candidates, key=at_mean.__getitem__)
    crests = Crests(bound_s, best, tuned)
    for index in range(scale.runs):
        crests.dynamic.append(crest(model, scale.wave_s, scale.wave_steps, index + 1))
        crests.fixed.append(crest(best.name, scale.wave_s, scale.wave_steps, index + 1))
        crests.tuned.append(crest(tuned.name, scale.wave_s, scale.wave_steps, index + 1))
        quiet = QUIET_SHARE * crests.dynamic[-1]
        crests.dynamic_p50_s.append(p50_s(model, quiet))
        crests.fixed_p50_s.append(p50_s(best.name, quiet))
    return _figures(crests)


def _figures(crests: Crests) -> dict[str, Figure]:
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
