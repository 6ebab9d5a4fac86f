"""Triton's dynamic batching on `embed`: what 64 concurrent callers gain over one, by text length.

- `batch64_over_batch1`: texts per second of 64 callers / of one caller, one text a call, 16 tokens a text.
- `batch64_over_batch1_N_tokens`: the same for texts of N tokens.
- `share_of_bare_torch`: texts per second of 64 callers / of torch alone in batches of 32, without Triton.
- `batch_sizes`: how often Triton's statistics saw each batch size for the 64 callers at 16 tokens; `mean_batch`.

`dynamic_over_fixed_throughput` needs an open-loop load that varies: it comes with the load tests.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.clients import TritonLoad, closed_loop
from benchmarks.reference import Reference
from benchmarks.report import Figure, Report
from contracts.stack import tidegate_home
from tidegate.testing import running_stack

NAME = "batching"
LENGTHS = (8, 16, 32, 64, 128)
HEADLINE_TOKENS = 16
NUM_CALLERS = 64
SPECIAL_TOKENS = 2
"""[CLS] and [SEP] belong to a text's length."""

Progress = Callable[[str], None]


@dataclass
class Rates:
    """Texts per second, a value per run."""

    one_caller: list[float] = field(default_factory=list)
    many_callers: list[float] = field(default_factory=list)
    bare_torch: list[float] = field(default_factory=list)
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
        before = await load.batch_sizes("embed")
        started_s = time.monotonic()
        await closed_loop(num_callers, num_calls, lambda i: load.embed("embed", [text_of(num_tokens, i)]))
        seconds = time.monotonic() - started_s
        after = await load.batch_sizes("embed")
    counts = {size: count - before.get(size, 0) for size, count in sorted(after.items())}
    return num_calls / seconds, {size: count for size, count in counts.items() if count}


def run(quick: bool, progress: Progress) -> dict[str, Any]:
    runs = 1 if quick else 5
    num_calls = 256 if quick else 640
    rates = {length: Rates() for length in LENGTHS}
    folder = tidegate_home() / "models" / "all-minilm-l6-v2"
    with Reference(folder) as reference, running_stack() as stack:
        address = stack.stack.triton_grpc
        asyncio.run(rate(address, NUM_CALLERS, 64, HEADLINE_TOKENS))
        for index in range(runs):
            for length in LENGTHS:
                progress(f"run {index + 1} of {runs}: texts of {length} tokens")
                _measure(rates[length], reference, address, length, num_calls)
    return Report(NAME, runs, _figures(rates)).to_dict()


def _measure(rates: Rates, reference: Reference, address: str, length: int, num_calls: int) -> None:
    one, _ = asyncio.run(rate(address, 1, num_calls // 4, length))
    many, sizes = asyncio.run(rate(address, NUM_CALLERS, num_calls, length))
    bare = reference.ask("embed", texts=[text_of(length, i) for i in range(num_calls)], batch_size=32)
    rates.one_caller.append(one)
    rates.many_callers.append(many)
    rates.bare_torch.append(bare["num_texts"] / bare["seconds"])
    for size, count in sizes.items():
        rates.batch_sizes[size] = rates.batch_sizes.get(size, 0) + count


def _figures(rates: dict[int, Rates]) -> dict[str, Figure]:
    head = rates[HEADLINE_TOKENS]
    sizes = [size for size, count in head.batch_sizes.items() for _ in range(count)]
    shares = [many / bare for many, bare in zip(head.many_callers, head.bare_torch, strict=True)]
    figures = {
        "batch64_over_batch1": Figure.of_runs(head.gains, "ratio"),
        "texts_per_s_1": Figure.of_runs(head.one_caller, "texts/s"),
        "texts_per_s_64": Figure.of_runs(head.many_callers, "texts/s"),
        "share_of_bare_torch": Figure.of_runs(shares, "ratio"),
        "mean_batch": Figure(sum(sizes) / len(sizes), "texts", min(sizes), max(sizes)),
        "batch_sizes": Figure(
            {str(size): sizes.count(size) for size in sorted(set(sizes))}, "batches by size"
        ),
    }
    for length, measured in rates.items():
        figures[f"batch64_over_batch1_{length}_tokens"] = Figure.of_runs(measured.gains, "ratio")
    return figures
