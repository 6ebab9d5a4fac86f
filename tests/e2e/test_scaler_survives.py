"""Scaler, node, Triton and its metrics, killed or cut off under load on the real Triton: the count does not
fall for it, never below the minimum, and the scaler recovers alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from pathlib import Path

import psutil
import pytest

from benchmarks.tide_load import MODEL
from contracts.stack import read_stack
from scaler.errors import ScaleError
from scaler.triton_client import TritonClient
from tests.e2e.plain_triton import PlainTriton, plain_triton, write_plain_model
from tests.e2e.scaler_load import OPTIONS, Watched, loaded, policy, until
from tests.e2e.support import closed_loop_clients
from tests.e2e.tcp_gate import TcpGate
from tests.integration.scaler_process import RunningScaler, running_scaler
from tidegate.testing import RunningStack, running_stack

pytestmark = pytest.mark.e2e

WINDOW_S = 8.0
PLAIN = "echo"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    """Two to three instances, and a window long enough to see that nothing happens in it."""
    policy_path = tmp_path_factory.mktemp("policy") / "policy.yaml"
    scale_in = f"{{utilization: 0.3, queue: 5, window_s: {WINDOW_S:g}}}"
    policy_path.write_text(policy(min_instances="2", scale_in=scale_in))
    with running_stack(*OPTIONS, "--policy", str(policy_path)) as started:
        yield started


@contextlib.asynccontextmanager
async def least_groups(stack_grpc: str, model: str) -> AsyncIterator[list[int]]:
    """How many instances Triton served at each look; nothing where it did not answer."""
    triton, seen = TritonClient(stack_grpc), list[int]()

    async def look_on() -> None:
        while True:
            with contextlib.suppress(ScaleError):
                seen.append(len((await triton.config(model)).instance_group))
            await asyncio.sleep(0.1)

    looking = asyncio.create_task(look_on())
    try:
        yield seen
    finally:
        looking.cancel()
        await asyncio.wait({looking})
        await triton.close()


def pid_of(running: RunningStack, name: str) -> int:
    stack = read_stack(running.run_dir)
    assert stack is not None
    return stack.pids[name]


async def next_pid(running: RunningStack, name: str, old_pid: int) -> int:
    """When the launcher has started the next one."""
    await until(lambda: pid_of(running, name) != old_pid)
    return pid_of(running, name)


def first_time(log: str, text: str) -> float:
    """Unix seconds of the first line with it."""
    line = next(line for line in log.splitlines() if text in line)
    stamp = re.match(r"\S+", line)
    assert stamp is not None
    return datetime.fromisoformat(stamp.group()).timestamp()


async def test_a_killed_scaler_adopts_what_runs_and_takes_nothing_away_for_a_window(
    running: RunningStack,
) -> None:
    """Three instances; SIGKILL as the load ends: the next one keeps three for 8 s at least, then goes to two."""
    stack = running.stack
    async with (
        Watched(stack.scaler_grpc) as watched,
        loaded(stack.triton_grpc, 24) as load,
        least_groups(stack.triton_grpc, MODEL) as served,
    ):
        await watched.ready(3)
        served.clear()
        pid = pid_of(running, "scaler")
        os.kill(pid, signal.SIGKILL)
        load.num_callers = 0
        await next_pid(running, "scaler", pid)
        await watched.ready(2)
        assert load.failures == []
        assert min(served) == 2
        log = (running.run_dir / "logs" / "scaler.log").read_text()
        adopted_s = first_time(log, f"scaling {MODEL}")
        assert (
            first_time(log, f"{MODEL} 3→2") - adopted_s >= WINDOW_S - 1
        )  # the log's stamps are whole seconds


async def test_a_killed_node_takes_no_instance_along(running: RunningStack) -> None:
    """Requests fail until the next node has workers; Triton's instances stay, and the scaler goes on alone."""
    stack = running.stack
    async with (
        Watched(stack.scaler_grpc) as watched,
        loaded(stack.triton_grpc, 24) as load,
        least_groups(stack.triton_grpc, MODEL) as served,
    ):
        await watched.ready(3)
        served.clear()
        pid = pid_of(running, "node")
        os.kill(pid, signal.SIGKILL)
        await next_pid(running, "node", pid)
        await watched.ready(3)
        assert min(served) == 3
        assert load.failures, "the node was not missed"
        assert all("unavailable" in failure for failure in load.failures), load.failures
        load.failures.clear()
        load.num_callers = 0
        await watched.ready(2)
        assert load.failures == []


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A plain model of 20 ms a batch, nothing of ours."""
    folder = tmp_path / "repository"
    write_plain_model(folder, PLAIN)
    return folder


@contextlib.contextmanager
def scaling(folder: Path, grpc_gate: TcpGate, metrics_gate: TcpGate) -> Iterator[RunningScaler]:
    """A scaler of two to three `echo`, which knows Triton only by the gates."""
    policy_path = folder / "policy.yaml"
    policy_path.write_text(policy(min_instances="2").replace(MODEL, PLAIN))
    with running_scaler(
        folder,
        triton_grpc=grpc_gate.address,
        triton_metrics=metrics_gate.address,
        policy_path=str(policy_path),
        tick_s=0.5,
    ) as scaler:
        yield scaler


def metrics_address(triton: PlainTriton) -> str:
    return triton.metrics.removeprefix("http://").partition("/")[0]


async def test_without_triton_metrics_nothing_is_taken_away(repository: Path, tmp_path: Path) -> None:
    """The endpoint is cut off under load, then the load ends: three stay until the queue is known again."""
    with plain_triton(repository, PLAIN, flags=("--rate-limit=execution_count",)) as triton:
        async with TcpGate(triton.grpc) as grpc_gate, TcpGate(metrics_address(triton)) as metrics_gate:
            with scaling(tmp_path, grpc_gate, metrics_gate) as scaler:
                async with Watched(scaler.address, PLAIN) as watched:
                    async with closed_loop_clients(triton.grpc, PLAIN, 24) as outcomes:
                        await watched.ready(3)
                        await metrics_gate.shut()
                        await watched.until(lambda status: status.signals.queue.quality == "stale")
                    reports = await watched.during(8)
                    assert [status.counts.ready for status in reports] == [3] * 8
                    assert reports[-1].decision.cause == "unknown"
                    assert "queue stale" in reports[-1].decision.reason
                    await metrics_gate.open()
                    await watched.ready(2)
                assert outcomes.failures == []


async def test_a_killed_triton_gets_its_instances_back(repository: Path, tmp_path: Path) -> None:
    """It comes back with one, as its repository says: three served before, so three are made at once."""
    with plain_triton(repository, PLAIN, flags=("--rate-limit=execution_count",)) as triton:
        async with TcpGate(triton.grpc) as grpc_gate, TcpGate(metrics_address(triton)) as metrics_gate:
            with scaling(tmp_path, grpc_gate, metrics_gate) as scaler:
                async with Watched(scaler.address, PLAIN) as watched:
                    async with closed_loop_clients(triton.grpc, PLAIN, 24):
                        await watched.ready(3)
                        kill_with_stubs(triton.process.pid)
                        await grpc_gate.shut()
                        await metrics_gate.shut()
                        lost = await watched.until(lambda status: not status.HasField("counts"))
                        assert "not known; nothing is changed" in lost.decision.reason
                    with plain_triton(
                        repository, PLAIN, flags=("--rate-limit=execution_count",)
                    ) as next_triton:
                        grpc_gate.target = next_triton.grpc
                        metrics_gate.target = metrics_address(next_triton)
                        await metrics_gate.open()
                        await grpc_gate.open()
                        back = await watched.ready(3)
                        assert len(next_triton.stub_pids(PLAIN)) == 3
                        assert back.counts.ready == 3
                        await watched.ready(2)


def kill_with_stubs(triton_pid: int) -> None:
    process = psutil.Process(triton_pid)
    for each in [process, *process.children(recursive=True)]:
        each.kill()
