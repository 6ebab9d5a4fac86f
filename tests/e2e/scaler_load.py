"""Load on the emulated model of the tide bench, and what its scaler says, for tests of the scaler."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from benchmarks.clients import TritonLoad
from benchmarks.tide_load import MODEL, REPOSITORY, AskFailed, ask
from contracts import scaler_pb2 as pb
from scaler.errors import ScaleError
from scaler.serving.service_client import ScalerClient

DEADLINE_S = 60.0
"""Far beyond what anything here takes; a test that reaches it has failed."""
PAUSE_S = 0.5
"""Between the requests of a caller that leaves the model nearly idle."""
OPTIONS = (
    *("--repository", str(REPOSITORY), "--model", MODEL, "--spares", f"{MODEL}=2"),
    *("--no-gateway", "--pool-bytes", "64MiB"),
)
"""Of `tidegate up` with that model alone."""


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not holds():  # noqa: ASYNC110  # a file, or what callers count: nobody sets an event
            await asyncio.sleep(0.05)


@dataclass
class Load:
    """Callers, each of which sends its next request when the last one is answered."""

    num_callers: int
    num_ok: int = 0
    failures: list[str] = field(default_factory=list)
    worker_pids: set[int] = field(default_factory=set)
    """Who has answered."""


@contextlib.asynccontextmanager
async def loaded(address: str, num_callers: int) -> AsyncIterator[Load]:
    """Until the block ends and all are answered. Set `num_callers` to have another load; 0 is one slow caller."""
    load, done = Load(num_callers), asyncio.Event()

    async def call(stub: object, number: int) -> None:
        while not done.is_set():
            if number >= max(1, load.num_callers):
                await asyncio.sleep(0.05)
                continue
            try:
                told = await ask(stub, float(number))
                load.num_ok += 1
                load.worker_pids.add(int(told["worker_pid"]))
            except AskFailed as exc:
                load.failures.append(str(exc))
                await asyncio.sleep(0.1)
            if not load.num_callers:
                await asyncio.sleep(PAUSE_S)

    async with TritonLoad(address) as triton, asyncio.TaskGroup() as group:
        for number in range(num_callers):
            group.create_task(call(triton.stub, number))
        try:
            yield load
        finally:
            done.set()


class Watched:
    """One model as its scaler reports it. A scaler that does not answer leaves no report."""

    def __init__(self, address: str, model: str = MODEL) -> None:
        self.model = model
        self._client = ScalerClient(address)
        self.least_ready = 1_000_000
        """Of all reports so far that had a count."""

    async def __aenter__(self) -> Watched:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def look(self) -> pb.ModelStatus | None:
        try:
            (status,) = (await self._client.status([self.model])).models
        except ScaleError:
            return None
        if status.HasField("counts"):
            self.least_ready = min(self.least_ready, status.counts.ready)
        return status

    async def until(self, holds: Callable[[pb.ModelStatus], bool]) -> pb.ModelStatus:
        """The first report for which it holds."""
        last: pb.ModelStatus | None = None
        async with asyncio.timeout(DEADLINE_S) as limit:
            while True:
                try:
                    if (status := await self.look()) is not None and holds(last := status):
                        return status
                    await asyncio.sleep(0.1)
                except TimeoutError as exc:
                    assert limit.expired()
                    raise AssertionError(f"not within {DEADLINE_S:g} s; last report: {last}") from exc

    async def ready(self, num_instances: int) -> pb.ModelStatus:
        """So many serve, and no change runs."""
        return await self.until(
            lambda status: (
                status.HasField("counts")
                and status.counts.ready == num_instances
                and not status.counts.starting
                and not status.HasField("change")
            )
        )

    async def during(self, num_reports: int) -> list[pb.ModelStatus]:
        """So many reports, one for each of the scaler's ticks."""
        reports: list[pb.ModelStatus] = []
        while len(reports) < num_reports:
            if (status := await self.look()) is not None:
                reports.append(status)
            await asyncio.sleep(1.0)
        return reports


def policy(**changes: str) -> str:
    """Up to three instances, out after a second, in after a few; `changes` replace lines of the model."""
    lines = {
        "min_instances": "1",
        "max_instances": "3",
        "target_utilization": "0.6",
        "scale_out": "{utilization: 0.7, queue: 20, hold_s: 1, utilization_hold_s: 1}",
        "scale_in": "{utilization: 0.3, queue: 5, window_s: 3}",
        "cooldown_out_s": "1",
        "cooldown_in_s": "3",
        "stale_after_s": "2",
        "forecast": "{enabled: false}",
    } | changes
    return (
        "\n".join([f"models:\n  {MODEL}:", *(f"    {key}: {value}" for key, value in lines.items())]) + "\n"
    )
