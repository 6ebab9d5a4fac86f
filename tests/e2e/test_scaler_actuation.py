"""What the scaler's targets do to a real Triton: starts that hang, models that rest and are woken."""

from __future__ import annotations

import asyncio
import functools
import time
from pathlib import Path

import httpx
import pytest

from benchmarks.node import node_status
from contracts.stack import Stack
from scaler.acting.node_target import NodeTarget
from scaler.acting.stub_processes import end_stubs
from scaler.acting.target import Limits
from scaler.deciding.observation import Counts
from scaler.errors import StartAbandoned
from scaler.triton_client import TritonClient
from tests.e2e.support import StubNode, closed_loop_clients, launched, write_model
from tests.models import CHAT, EMBED, model_folder
from tidegate.testing import running_stack

pytestmark = pytest.mark.e2e

HANG = 'time.sleep(3600) if os.path.exists("{path}") else None'


async def test_an_instance_whose_initialize_hangs_is_given_up_and_nothing_else_is_lost(
    tmp_path: Path,
) -> None:
    """No request fails, no stub that served restarts, the launcher reloads nothing, the next try works; from rest
    too."""
    repository, hang = tmp_path / "repository", tmp_path / "hang"
    init_log = write_model(repository, "echo", batch_s=0.02, on_initialize=HANG.format(path=hang))
    with launched(repository, "echo") as up:
        stack = await asyncio.to_thread(up.wait_ready)
        triton, node = TritonClient(stack.triton_grpc, stack.triton_key), StubNode(stack.pids["tritonserver"])
        target = NodeTarget(
            triton,
            node,
            up.run_dir,
            limits=lambda _: Limits(start_deadline_s=1.0 if hang.exists() else 60.0),
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
        # Those that were given up may have been ended before they came as far as initialize.
        assert sorted(set(names) - {"echo-1_0", "echo-2_0"}) == ["echo-0_0", "echo-3_0"]
        assert len(names) == len(set(names))
        assert (await target.scale("echo", 0, "idle")).after == 0
        hang.touch()
        with pytest.raises(StartAbandoned, match="echo-4 not started after 1 s"):
            await target.scale("echo", 1, "woken")
        assert await target.counts("echo") == Counts(ready=0, room=64)
        hang.unlink()
        assert (await target.scale("echo", 1, "woken")).detail == "+echo-5"
        assert "serves again" not in up.output
        await triton.close()


RESTING_POLICY = """
models:
  chat: {min_instances: 0, zero_after_s: 2, cooldown_in_s: 1, forecast: {enabled: false}}
  embed: {min_instances: 0, zero_after_s: 2, cooldown_in_s: 1, forecast: {enabled: false}}
"""


def test_models_without_requests_rest_and_the_first_requests_wake_them(tmp_path: Path) -> None:
    """Both rest after 2 s; weights and spares stay; eight requests at once are all answered; health stays ready."""
    model_folder(CHAT)
    model_folder(EMBED)
    policy = tmp_path / "policy.yaml"
    policy.write_text(RESTING_POLICY)
    with running_stack("--pool-bytes", "512MiB", "--policy", str(policy)) as running:
        asyncio.run(rest_and_wake(running.stack))
        status = node_status(running.stack.node_socket)
        assert {weights.num_bytes > 0 for weights in status.weights} == {True}


async def rest_and_wake(stack: Stack) -> None:
    triton = TritonClient(stack.triton_grpc, stack.triton_key)
    chat = {"model": "chat", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 4}
    embed = {"model": "embed", "input": ["a", "b"]}
    async with httpx.AsyncClient(base_url=f"http://{stack.gateway_http}", timeout=60) as http:
        async with asyncio.timeout(60):
            while {entry.state for entry in await triton.index()} != {"UNAVAILABLE"}:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        assert (await http.get("/health/ready")).status_code == 200
        started_s = time.monotonic()
        answers = await asyncio.gather(
            *(http.post("/v1/chat/completions", json=chat | {"stream": n % 2 == 0}) for n in range(6)),
            *(http.post("/v1/embeddings", json=embed) for _ in range(2)),
        )
        print(f"all answered {time.monotonic() - started_s:.2f} s after they were sent to models at rest")
        assert [
            (answer.status_code, answer.text[:200]) for answer in answers if answer.status_code != 200
        ] == []
    await triton.close()
