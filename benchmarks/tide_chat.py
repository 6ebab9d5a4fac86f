"""`chat` in waves, with the scaler on and with one fixed instance, in turns on one stack; a part of the tide bench,
and `tidegate bench tide-chat` by itself.

All instances share one budget of CPU threads, so on two cores a second one adds no speed, and it makes two batches
of one. So the policy goes out where one instance has no places left (64), not earlier.

- `chat_throughput_over_fixed`: tokens/s of the waves under the scaler / with one instance, turn by turn; only on a
  machine where nothing else runs.
- `chat_cpu_over_fixed`: CPU seconds a token of Triton, the node and all their children, scaled / fixed: what split
  batches and the second instance cost, also where others keep the cores busy.
- `chat_answers_differing`: of the scaled waves' greedy answers. `chat_failed_requests`: of both sides.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.clients import Streamed, TritonLoad, closed_loop
from benchmarks.generate import prompts
from benchmarks.node import cpu_s_of_trees
from benchmarks.report import Figure, Report
from benchmarks.tide_decisions import watching
from benchmarks.tide_scaler import scaling
from contracts.stack import Stack
from scaler.acting.by_hand import scale
from tidegate.testing import running_stack

NAME = "tide-chat"
MODEL = "chat"
SAMPLING = {"max_tokens": 48, "temperature": 0, "ignore_eos": True}
WAVES = ((4, 8), (96, 160), (4, 8))
QUICK_WAVES = ((4, 4), (80, 80), (4, 4))
"""Callers at once, and how many calls they make together."""
TURNS = 2
POLICY = f"""\
models:
  {MODEL}:
    max_instances: 2
    scale_out: {{utilization: 0.7, queue: 20, hold_s: 1, utilization_hold_s: 1}}
    scale_in: {{window_s: 4}}
    cooldown_out_s: 2
    cooldown_in_s: 2
    forecast: {{enabled: false}}
"""

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Waves:
    """All waves once."""

    streams: Sequence[Streamed]
    """By the number of the call."""
    seconds: float
    cpu_s: float
    """Of Triton, the node and all their children."""
    num_changes: int = 0

    @property
    def num_tokens(self) -> int:
        return sum(stream.num_tokens for stream in self.streams)

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.seconds

    @property
    def cpu_ms_per_token(self) -> float:
        return self.cpu_s / self.num_tokens * 1000

    @property
    def num_failed(self) -> int:
        return sum(bool(stream.error) or stream.finish_reason != "length" for stream in self.streams)


def run(quick: bool, progress: Progress) -> dict[str, Any]:
    """By itself. Raises StackDidNotStart."""
    return Report(NAME, TURNS, measure(quick, progress)).to_dict()


def measure(quick: bool, progress: Progress) -> dict[str, Figure]:
    waves = QUICK_WAVES if quick else WAVES
    progress(f"{MODEL} in waves of {', '.join(str(callers) for callers, _ in waves)} callers\n{POLICY}")
    fixed: list[Waves] = []
    scaled: list[Waves] = []
    options = ("--model", MODEL, "--spares", f"{MODEL}=1", "--no-gateway", "--no-scaler")
    with running_stack(*options) as running:
        warm_up = ((8, max(calls for _, calls in waves)),)  # every prompt once, for both sides
        asyncio.run(_send(running.stack, warm_up, SAMPLING | {"max_tokens": 1}))
        for turn in range(TURNS):
            # In changing order: what else runs on the machine comes and goes.
            for is_scaled in (False, True) if turn % 2 == 0 else (True, False):
                asyncio.run(scale(running.stack, MODEL, 1, on_event=lambda _: None))
                if is_scaled:
                    with scaling(running.stack, POLICY, tick_s=0.5, window_s=3.0) as scaler:
                        scaled.append(asyncio.run(_send_scaled(running.stack, scaler, waves, progress)))
                else:
                    fixed.append(asyncio.run(_send(running.stack, waves)))
            progress(f"{fixed[-1].tokens_per_s:.0f} tokens/s fixed, {scaled[-1].tokens_per_s:.0f} scaled")
    return figures(fixed, scaled)


def figures(fixed: Sequence[Waves], scaled: Sequence[Waves]) -> dict[str, Figure]:
    pairs = list(zip(fixed, scaled, strict=True))
    ratios = [ours.tokens_per_s / base.tokens_per_s for base, ours in pairs]
    costs = [ours.cpu_ms_per_token / base.cpu_ms_per_token for base, ours in pairs]
    texts = [stream.text for stream in fixed[0].streams]
    differing = sum(
        stream.text != text for ours in scaled for stream, text in zip(ours.streams, texts, strict=True)
    )
    return {
        "chat_throughput_over_fixed": Figure.of_runs(ratios, "ratio"),
        "chat_cpu_over_fixed": Figure.of_runs(costs, "ratio"),
        "chat_cpu_ms_per_token_fixed": Figure.of_runs([base.cpu_ms_per_token for base in fixed], "ms"),
        "chat_tokens_per_s_fixed": Figure.of_runs([base.tokens_per_s for base in fixed], "tokens/s"),
        "chat_failed_requests": Figure(sum(each.num_failed for each in (*fixed, *scaled)), "requests"),
        "chat_answers_differing": Figure(differing, "answers"),
        "chat_changes": Figure(sum(each.num_changes for each in scaled), "decisions"),
    }


async def _send_scaled(
    stack: Stack, scaler: str, waves: Sequence[tuple[int, int]], progress: Progress
) -> Waves:
    async with watching(scaler, MODEL, progress) as events:
        sent = await _send(stack, waves)
    return Waves(sent.streams, sent.seconds, sent.cpu_s, sum(event.is_change for event in events))


async def _send(
    stack: Stack, waves: Sequence[tuple[int, int]], sampling: Mapping[str, Any] = SAMPLING
) -> Waves:
    streams: dict[int, Streamed] = {}
    asked = prompts(max(calls for _, calls in waves))
    pids = [stack.pids["tritonserver"], stack.pids["node"]]
    began_s, cpu_s, first = time.monotonic(), cpu_s_of_trees(pids), 0
    async with TritonLoad(stack.triton_grpc) as load:

        async def ask(index: int) -> None:
            streams[first + index] = await load.stream(MODEL, asked[index], dict(sampling))

        for num_callers, num_calls in waves:
            await closed_loop(num_callers, num_calls, ask)
            first += num_calls
    seconds, cpu_s = time.monotonic() - began_s, cpu_s_of_trees(pids) - cpu_s
    return Waves([streams[number] for number in sorted(streams)], seconds, cpu_s)
