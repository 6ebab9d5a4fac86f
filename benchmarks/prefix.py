"""What a prompt's published beginning saves: time to first token through Triton with two instances of `chat`.

- `ttft_hit_over_miss`: a system prompt of 512 tokens that the *same* instance has computed before / the same length
  computed for the first time, medians; the user's turn differs.
- `ttft_hit_other_instance_over_miss`: the same, when the *other* instance had computed it.
- `overhead_no_hit`: CPU time of hashing, matching, publishing and dropping, the node's part included, as a share of all
  CPU time, 16 streams that share no prefix; the engine alone with its leases from a lease server.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tokenizers

from benchmarks.clients import TritonLoad
from benchmarks.generate import prompts
from benchmarks.node import node_status, wait_until
from benchmarks.reference import Reference
from benchmarks.report import Figure, Report
from contracts.stack import Stack, tidegate_home
from tidegate.testing import running_stack

NAME = "prefix"
PREFIX_TOKENS = 512
MAX_ROUNDS = 60
WORDS = [
    "tide",
    "boat",
    "harbour",
    "rope",
    "anchor",
    "gull",
    "sand",
    "wave",
    "moon",
    "pier",
    "salt",
    "wind",
    "lantern",
    "chart",
    "deck",
    "sail",
]

Progress = Callable[[str], None]


def run(quick: bool, progress: Progress) -> dict[str, Any]:
    wanted = 4 if quick else 15
    folder = tidegate_home() / "models" / "smollm2-135m-instruct"
    with running_stack("--pool-bytes", "2GiB", "--num-cpus", "2") as running:
        scale = [sys.executable, "-m", "tidegate", "scale", "chat", "2", "--run-dir", str(running.run_dir)]
        subprocess.run(scale, check=True, stdout=subprocess.DEVNULL)
        wait_until(running.stack.node_socket, lambda status: _num_instances(status) == 2)
        seen = asyncio.run(_measure(running.stack, folder, wanted, progress))
    progress("overhead without hits")
    with Reference(folder) as reference:
        reference.ask("prefix_overhead", prompts=prompts(2), max_tokens=4)
        answers = [
            reference.ask("prefix_overhead", prompts=prompts(16), max_tokens=64)
            for _ in range(1 if quick else 3)
        ]
    overheads = [answer["prefix_s"] / answer["total_s"] for answer in answers]
    miss = statistics.median(seen["miss"])
    figures = {
        "ttft_miss_ms": Figure.of_runs([s * 1000 for s in seen["miss"]], "ms"),
        "ttft_hit_over_miss": Figure.of_runs([s / miss for s in seen["same"]], "ratio"),
        "ttft_hit_other_instance_over_miss": Figure.of_runs([s / miss for s in seen["other"]], "ratio"),
        "overhead_no_hit": Figure.of_runs(overheads, "ratio"),
    }
    return Report(NAME, len(seen["miss"]), figures).to_dict()


def _num_instances(status: Any) -> int:
    return next(int(model.num_instances) for model in status.models if model.name == "chat")


async def _measure(stack: Stack, folder: Path, wanted: int, progress: Progress) -> dict[str, list[float]]:
    """Rounds of one miss and two hits, one request at a time, until each kind was seen often enough."""
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    seen: dict[str, list[float]] = {"miss": [], "same": [], "other": []}
    async with TritonLoad(stack.triton_grpc) as load:
        await load.stream("chat", "warm up", {"max_tokens": 2, "temperature": 0})
        for number in range(MAX_ROUNDS):
            progress(", ".join(f"{len(times)} {kind}" for kind, times in seen.items()))
            prefix = system_prompt(tokenizer, number)
            first = await _ask(stack, load, f"{prefix} What is it about?", seen["miss"])
            for question in ("Who wrote it?", "What comes next in it?"):
                times: list[float] = []
                instance = await _ask(stack, load, f"{prefix} {question}", times)
                # The second hit may find what either instance published; the prefix is the first one's.
                seen["same" if instance == first else "other"] += times
            if min(len(seen["same"]), len(seen["other"])) >= wanted:
                return seen
    raise RuntimeError(
        f"after {MAX_ROUNDS} rounds {len(seen['same'])} hits were on the same instance, {len(seen['other'])} on"
        " the other: the load does not spread"
    )


async def _ask(stack: Stack, load: TritonLoad, prompt: str, times_s: list[float]) -> str:
    """Appends the time to first token; the name of the instance that answered."""
    before = _landed(stack)
    streamed = await load.stream("chat", prompt, {"max_tokens": 2, "temperature": 0})
    if streamed.error:
        raise RuntimeError(streamed.error)
    times_s.append(streamed.ttft_s)
    after = _landed(stack)
    return next(name for name in after if after[name] > before[name])


def _landed(stack: Stack) -> dict[str, int]:
    status = node_status(stack.node_socket)
    return {i.instance: int(i.landed) for i in status.instances if i.model == "chat"}


def system_prompt(tokenizer: tokenizers.Tokenizer, number: int) -> str:
    """Text of 512 tokens that no other number's text begins like."""
    rng = random.Random(number)
    words = [f"{number}", "is", "the", "story."]
    while len(tokenizer.encode(" ".join(words)).ids) < PREFIX_TOKENS:
        words += rng.choices(WORDS, k=8)
    return " ".join(words)
