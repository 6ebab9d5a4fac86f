"""What another instance costs: time, memory, and what the running streams notice.

- `command_to_ready_p50_ms`, `_p95_ms`: from the scale call to the new instance ready, on an idle machine, over
  20 additions (second, third and fourth instance); `_busy_`: while four streams keep the cores busy.
- `bare_stub_p50_ms`: adding an instance of a model that imports nothing, to a Triton beside it, in turns with ours:
  what Triton and its stub take whatever the model is. `over_bare_stub_p50_ms`: ours less the one after it.
- `command_to_first_token_p95_ms`: from the scale call to the first token of a request that the new instance got.
- `attach_p95_ms`: of that, the worker alone: from AttachInstance to Attached on a raw socket, with warm spares.
- `plain_over_ours`: adding an instance of an ordinary model (`ordinary`: torch in the stub, weights mapped from the
  file) to the same Triton / `command_to_ready_p50_ms`.
- `pss_growth_over_weights`: what one instance adds to the sum of PSS over all workers / bytes of the weights.
- `share_of_new_after_history`: after thousands of requests on one instance and 1 -> 3, each instance's share of the
  next 300 (Triton alone gives the new ones everything).
- `streams_per_instance`: 16 streams on four instances.
- `worst_gap_ms`, `usual_gap_ms`: between two tokens of a stream, longest during and median outside of scale-outs.
- `failed_requests`: of all streams that ran.

`ready` is what `tidegate scale` reports; the command line's own start-up (about half a second) is not in it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.attach import attach_ms
from benchmarks.clients import Streamed, TritonLoad, closed_loop
from benchmarks.generate import prompts
from benchmarks.node import node_status, num_spares, pss_bytes, wait_until
from benchmarks.ordinary import OrdinaryModel, bare_model, ordinary_model
from benchmarks.report import Figure, Report
from benchmarks.statistics import median, percentile
from contracts.stack import Stack
from scaler.acting.by_hand import scale
from tidegate.testing import running_stack

NAME = "scaleout"
SPARES = 3
MAX_INSTANCES = 4
SETTLE_S = 1.0
"""After spares are warm again: their last start must not be measured with the next addition."""
SHORT = {"max_tokens": 1, "temperature": 0}

Progress = Callable[[str], None]


@dataclass
class Additions:
    """Samples over many additions."""

    ready_ms: list[float] = field(default_factory=list)
    bare_ms: list[float] = field(default_factory=list)
    first_token_ms: list[float] = field(default_factory=list)
    pss_growth_bytes: list[float] = field(default_factory=list)
    not_in_place: int = 0


def run(quick: bool, progress: Progress) -> dict[str, Any]:
    tries = 3 if quick else 21
    history = 500 if quick else 5000
    with running_stack("--spares", f"chat={SPARES}") as running:
        stack = running.stack
        weights_bytes = next(
            m.weights_bytes for m in node_status(stack.node_socket).models if m.name == "chat"
        )
        attaches = _attaches(stack, tries, progress)
        with bare_model() as bare:
            idle = _additions(stack, bare, tries, progress)
        streams: list[Streamed] = []
        busy = asyncio.run(_busy_additions(stack, tries, progress, streams))
        progress(f"{history} requests on one instance, then 1 -> 3")
        shares = asyncio.run(_shares_after_history(stack, history))
        progress("16 streams on four instances")
        landed = asyncio.run(_landed_streams(stack))
    plain_ms = _plain_additions(1 if quick else 3, progress)
    failed = sum(bool(stream.error) or stream.finish_reason != "length" for stream in streams)
    figures = {
        **_times(idle, busy),
        "attach_p50_ms": Figure(median(attaches), "ms", min(attaches), max(attaches)),
        "attach_p95_ms": Figure(percentile(attaches, 95), "ms", min(attaches), max(attaches)),
        "plain_over_ours": Figure.of_runs([each / median(idle.ready_ms) for each in plain_ms], "ratio"),
        "pss_growth_over_weights": Figure.of_runs(
            [x / weights_bytes for x in idle.pss_growth_bytes], "ratio"
        ),
        "share_of_new_after_history": Figure(
            shares, "share by instance", min(shares.values()), max(shares.values())
        ),
        "streams_per_instance": Figure(landed, "streams", min(landed.values()), max(landed.values())),
        **_gaps(streams),
        "streams_during_scaling": Figure(len(streams), "requests"),
        "failed_requests": Figure(failed, "requests"),
        "not_in_place": Figure(idle.not_in_place + busy.not_in_place, "updates"),
    }
    return Report(NAME, tries, figures).to_dict()


def _attaches(stack: Stack, tries: int, progress: Progress) -> list[float]:
    """One after the other, each to a worker that has stood by for a while."""
    progress(f"{tries} attaches")
    times_ms = []
    for index in range(tries):
        wait_until(stack.node_socket, lambda status: num_spares(status, "chat") >= 1, timeout_s=60)
        times_ms.append(attach_ms(Path(stack.run_dir), "chat", f"bench-{index}"))
    return times_ms


def _plain_additions(tries: int, progress: Progress) -> list[float]:
    """Milliseconds of adding a second, third, ... instance of the ordinary model."""
    with ordinary_model(owns_copy=False) as plain:
        plain.use_all(prompts(1)[0])
        times_ms = []
        for index in range(tries):
            progress(f"ordinary model: addition {index + 1} of {tries}")
            times_ms.append(plain.set_instances(2 + index))
    return times_ms


def _times(idle: Additions, busy: Additions) -> dict[str, Figure]:
    def spread(samples: list[float], percent: float) -> Figure:
        return Figure(percentile(samples, percent), "ms", min(samples), max(samples))

    return {
        "command_to_ready_p50_ms": spread(idle.ready_ms, 50),
        "command_to_ready_p95_ms": spread(idle.ready_ms, 95),
        "command_to_ready_busy_p50_ms": spread(busy.ready_ms, 50),
        "command_to_ready_busy_p95_ms": spread(busy.ready_ms, 95),
        "bare_stub_p50_ms": spread(idle.bare_ms, 50),
        "over_bare_stub_p50_ms": spread(
            [ours - bare for ours, bare in zip(idle.ready_ms, idle.bare_ms, strict=True)], 50
        ),
        "command_to_first_token_p50_ms": spread(idle.first_token_ms, 50),
        "command_to_first_token_p95_ms": spread(idle.first_token_ms, 95),
    }


def _gaps(streams: list[Streamed]) -> dict[str, Figure]:
    gaps = [
        (later - earlier) * 1000
        for stream in streams
        for earlier, later in zip(stream.token_times_s, stream.token_times_s[1:], strict=False)
    ]
    middle, worst = median(gaps), max(gaps)
    return {
        "usual_gap_ms": Figure(middle, "ms", min(gaps), worst),
        "worst_gap_ms": Figure(worst, "ms", min(gaps), worst),
    }


def _additions(stack: Stack, bare: OrdinaryModel, tries: int, progress: Progress) -> Additions:
    """Idle: one instance at a time up to four, then back to one, until `tries` were added."""
    seen = Additions()
    while len(seen.ready_ms) < tries:
        for wanted in range(2, MAX_INSTANCES + 1):
            progress(f"idle: addition {len(seen.ready_ms) + 1} of {tries}")
            _wait_for_spares(stack)
            before = _pss_of_workers(stack)
            asyncio.run(_add_and_ask(stack, wanted, seen))
            _wait_for_spares(stack)
            seen.pss_growth_bytes.append(_pss_of_workers(stack) - before)
            seen.bare_ms.append(bare.set_instances(wanted))
        asyncio.run(_scale(stack, 1, Additions()))
        bare.set_instances(1)
    return seen


async def _add_and_ask(stack: Stack, wanted: int, seen: Additions) -> None:
    """Add one, then ask until the new instance has answered: an idle one of equal load gets the next request."""
    async with TritonLoad(stack.triton_grpc) as load:
        started_s = time.monotonic()
        await _scale(stack, wanted, seen)
        stream = await load.stream("chat", prompts(1)[0], SHORT)
        if stream.error:
            raise RuntimeError(f"the first request after a scale-out failed: {stream.error}")
        seen.first_token_ms.append((stream.token_times_s[0] - started_s) * 1000)


async def _scale(stack: Stack, wanted: int, seen: Additions) -> None:
    result = await scale(stack, "chat", wanted, on_event=lambda _: None)
    seen.ready_ms.append(result.ready_ms)
    seen.not_in_place += not result.in_place


def _wait_for_spares(stack: Stack) -> None:
    wait_until(stack.node_socket, lambda status: num_spares(status, "chat") >= SPARES, timeout_s=60)
    time.sleep(SETTLE_S)


def _pss_of_workers(stack: Stack) -> int:
    """Sum over the model's workers. Taken with all spares warm, so that an addition shows as one worker more."""
    workers = [worker for worker in node_status(stack.node_socket).workers if worker.model == "chat"]
    return sum(pss_bytes(worker.pid) for worker in workers)


async def _busy_additions(stack: Stack, tries: int, progress: Progress, streams: list[Streamed]) -> Additions:
    """The same with four streams running all the time; collects them."""
    seen = Additions()
    stopping = asyncio.Event()
    async with TritonLoad(stack.triton_grpc) as load:

        async def keep_busy(index: int) -> None:
            sampling = {"max_tokens": 48, "temperature": 0, "ignore_eos": True}
            while not stopping.is_set():
                streams.append(await load.stream("chat", prompts(4)[index], sampling))

        busy = [asyncio.create_task(keep_busy(index)) for index in range(4)]
        await asyncio.sleep(2)
        while len(seen.ready_ms) < tries:
            for wanted in range(2, MAX_INSTANCES + 1):
                progress(f"busy: addition {len(seen.ready_ms) + 1} of {tries}")
                await asyncio.to_thread(_wait_for_spares, stack)
                await _scale(stack, wanted, seen)
            await _scale(stack, 1, Additions())
        stopping.set()
        await asyncio.gather(*busy)
    return seen


async def _landed(stack: Stack) -> dict[str, int]:
    status = await asyncio.to_thread(node_status, stack.node_socket)
    return {entry.instance: entry.landed for entry in status.instances if entry.model == "chat"}


async def _shares_after_history(stack: Stack, history: int) -> dict[str, float]:
    """Each instance's share of 300 requests after `history` of them on one instance."""
    async with TritonLoad(stack.triton_grpc) as load:

        async def ask(index: int) -> None:
            await load.stream("chat", f"{index}", SHORT)

        await closed_loop(32, history, ask)
        await asyncio.to_thread(_wait_for_spares, stack)
        await _scale(stack, 3, Additions())
        before = await _landed(stack)
        await closed_loop(12, 300, ask)
        after = await _landed(stack)
    return {name: (after[name] - before[name]) / 300 for name in after}


async def _landed_streams(stack: Stack) -> dict[str, float]:
    """Where 16 streams land that run at the same time on four instances."""
    await asyncio.to_thread(_wait_for_spares, stack)
    await _scale(stack, MAX_INSTANCES, Additions())
    async with TritonLoad(stack.triton_grpc) as load:
        before = await _landed(stack)
        sampling = {"max_tokens": 48, "temperature": 0, "ignore_eos": True}
        await asyncio.gather(*(load.stream("chat", prompt, sampling) for prompt in prompts(16)))
        after = await _landed(stack)
    return {name: after[name] - before[name] for name in after}
