"""The whole scaler on the real Triton: load comes, instances come; load goes, instances go; nothing fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.tide_load import MODEL
from tests.e2e.scaler_load import OPTIONS, Watched, loaded, policy, until
from tidegate.testing import running_stack

pytestmark = pytest.mark.e2e


async def test_a_step_of_load_brings_instances_and_its_end_takes_them_away(tmp_path: Path) -> None:
    """24 callers keep one instance of batches of 8 busy: 1 → 3, all three serve, then 3 → 1; no request fails."""
    policy_path = tmp_path / "policy.yaml"
    policy_path.write_text(policy())
    with running_stack(*OPTIONS, "--policy", str(policy_path)) as running:
        stack = running.stack
        async with Watched(stack.scaler_grpc) as watched:
            first = await watched.ready(1)
            assert (first.min_instances, first.max_instances) == (1, 3)
            async with loaded(stack.triton_grpc, 24) as load:
                await watched.ready(3)
                load.worker_pids.clear()
                await until(lambda: len(load.worker_pids) == 3)
                load.num_callers = 0
                await watched.ready(1)
                load.worker_pids.clear()
                num_ok = load.num_ok
                await until(lambda: load.num_ok >= num_ok + 3)
            assert load.failures == []
            assert len(load.worker_pids) == 1
        log = (running.run_dir / "logs" / "scaler.log").read_text()
        assert f"{MODEL} 1→" in log
        assert f"+{MODEL}-1" in log
        assert "not in place" not in log
