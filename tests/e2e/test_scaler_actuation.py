"""What the scaler's targets do to a real Triton: starts that hang, and what is left of them."""

from __future__ import annotations

import asyncio
import functools
from pathlib import Path

import pytest

from scaler.errors import StartAbandoned
from scaler.node_target import NodeTarget
from scaler.observation import Counts
from scaler.stub_processes import end_stubs
from scaler.target import Limits
from scaler.triton_client import TritonClient
from tests.e2e.support import StubNode, closed_loop_clients, launched, write_model

pytestmark = pytest.mark.e2e

HANG = 'time.sleep(3600) if os.path.exists("{path}") else None'


async def test_an_instance_whose_initialize_hangs_is_given_up_and_nothing_else_is_lost(
    tmp_path: Path,
) -> None:
    """No request fails, no stub that served restarts, the launcher reloads nothing, the next try works."""
    repository, hang = tmp_path / "repository", tmp_path / "hang"
    init_log = write_model(repository, "echo", batch_s=0.02, on_initialize=HANG.format(path=hang))
    with launched(repository, "echo") as up:
        stack = await asyncio.to_thread(up.wait_ready)
        triton, node = TritonClient(stack.triton_grpc), StubNode(stack.pids["tritonserver"])
        target = NodeTarget(
            triton,
            node,
            up.run_dir,
            limits=lambda _: Limits(start_deadline_s=1.0),
            say=print,
            end_stubs=functools.partial(end_stubs, stack.pids["tritonserver"]),
        )
        async with closed_loop_clients(stack.triton_grpc, "echo", 4) as outcomes:
            hang.touch()
            starting = asyncio.create_task(target.scale("echo", 3, "queue"))
            await asyncio.sleep(0.5)
            assert await target.counts("echo") == Counts(ready=1, starting=2, room=61)
            with pytest.raises(StartAbandoned, match="echo-1, echo-2 not started after 1 s"):
                await starting
            assert await target.counts("echo") == Counts(ready=1, room=63)
            hang.unlink()
            await asyncio.sleep(1.0)  # the launcher looks at its stubs four times a second
            again = await target.scale("echo", 2, "queue")
        assert (again.after, again.in_place, outcomes.failures) == (2, True, [])
        names = [line.split()[0] for line in init_log.read_text().splitlines()]
        assert sorted(names) == ["echo-0_0", "echo-1_0", "echo-2_0", "echo-3_0"]
        assert "serves again" not in up.output
        await triton.close()
