"""Scaling by hand while a queue stands in front of a slow batch model, on the real Triton."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from scaler.acting import instance_update
from scaler.acting.actuator import Actuator, InstanceChange
from scaler.triton_client import TritonClient
from tests.e2e.support import StubNode, closed_loop_clients, launched, write_model

pytestmark = pytest.mark.e2e

NUM_CLIENTS = 24
LIMIT_S = 5.0


async def test_scale_out_and_in_return_in_time_under_a_standing_queue(tmp_path: Path) -> None:
    """24 closed-loop clients on 0.5 s batches of at most 4: no failure, in place, and the chosen one goes."""
    repository = tmp_path / "repository"
    init_log = write_model(repository, "slow", batch_s=0.5, max_batch_size=4)
    with launched(repository, "slow") as up:
        stack = await asyncio.to_thread(up.wait_ready)
        triton, node = TritonClient(stack.triton_grpc, stack.triton_key), StubNode(stack.pids["tritonserver"])
        actuator = Actuator(triton, node, up.run_dir, say=print)
        canonical = await triton.config("slow")

        async def timed(num_instances: int) -> InstanceChange:
            started_s = time.monotonic()
            result = await actuator.scale("slow", num_instances)
            assert time.monotonic() - started_s < LIMIT_S
            served = await triton.config("slow")
            assert instance_update.differences(canonical, served) == []
            assert instance_update.instance_names(served) == result.after
            assert result.in_place
            return result

        async with closed_loop_clients(stack.triton_grpc, "slow", NUM_CLIENTS) as outcomes:
            await wait_for(lambda: outcomes.num_ok >= NUM_CLIENTS)
            out = await timed(3)
            assert out.added == ("slow-1", "slow-2")
            pids = {load.instance: load.stub_pid for load in await node.loads("slow")}
            await asyncio.sleep(1.0)
            scaled_in = await timed(1)
            assert set(scaled_in.removed) == {"slow-1", "slow-2"}
            assert node.drained == list(scaled_in.removed)
            (left,) = await node.loads("slow")
            assert (left.instance, left.stub_pid) == ("slow-0", pids["slow-0"])
            again = await timed(2)
            assert again.added == ("slow-3",), "ids are never reused"
        await triton.close()
        assert outcomes.failures == []
        names = [line.split()[0] for line in init_log.read_text().splitlines()]
        assert sorted(names) == ["slow-0_0", "slow-1_0", "slow-2_0", "slow-3_0"]


async def wait_for(holds: Callable[[], bool], timeout_s: float = 30.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not holds():  # noqa: ASYNC110  # a counter of the clients
            await asyncio.sleep(0.05)
