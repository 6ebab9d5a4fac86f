"""The node daemon is killed, or stops answering, under streaming load on the real Triton: it comes back alone."""

import asyncio
import os
import signal
import time

import psutil
import pytest

from benchmarks.clients import Streamed, TritonLoad
from benchmarks.node import node_status, wait_until
from contracts.stack import Stack, read_stack
from tests.models import CHAT, chat_text, model_folder
from tidegate import stubs
from tidegate.status import gather
from tidegate.testing import RunningStack, running_stack

pytestmark = pytest.mark.e2e

LONG = {"max_tokens": 600, "temperature": 0, "ignore_eos": True}
SHORT = {"max_tokens": 4, "temperature": 0, "ignore_eos": True}
RECOVERY_S = 60.0
"""Until it serves again: an import of torch and two warm-ups, on a machine that may be busy."""


@pytest.fixture(scope="module")
def stack():
    model_folder(CHAT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIDEGATE_NODE_HANG_TIMEOUT_S", "4")
        patch.setenv("TIDEGATE_WORKER_HANG_TIMEOUT_S", "4")
        with running_stack("--model", "chat", "--pool-bytes", "256MiB", "--spares", "chat=1") as started:
            yield started


def stub_processes(running: RunningStack) -> set[tuple[int, float]]:
    living, _ = stubs.children(running.stack.pids["tritonserver"])
    return {(stub.pid, stub.created_unix_s) for stub in living}


async def ask_until_served(load: TritonLoad) -> list[Streamed]:
    """Requests one after the other until one is answered, that one included."""
    asked: list[Streamed] = []
    deadline_s = time.monotonic() + RECOVERY_S
    while not asked or asked[-1].error:
        assert time.monotonic() < deadline_s, f"not served again within {RECOVERY_S:.0f} s: {asked[-1].error}"
        asked.append(await load.stream("chat", chat_text("hi"), SHORT))
        await asyncio.sleep(0.1)
    return asked


async def lose_node(
    running: RunningStack, signal_number: int
) -> tuple[list[Streamed], list[Streamed], float]:
    """Four streams run as the signal hits the node; then requests until one is served."""
    async with TritonLoad(running.stack.triton_grpc) as load:
        streams = [
            asyncio.create_task(load.stream("chat", chat_text(f"Tell me about {index}."), LONG))
            for index in range(4)
        ]
        await asyncio.to_thread(
            wait_until,
            running.stack.node_socket,
            lambda status: sum(entry.num_running for entry in status.instances) == 4,
        )
        hit_s = time.monotonic()
        os.kill(read_stack(running.run_dir).pids["node"], signal_number)
        ended = await asyncio.gather(*streams)
        if signal_number == signal.SIGKILL:
            problems = (await asyncio.to_thread(gather, read_stack(running.run_dir))).problems
            assert any(problem.startswith("node (pid ") for problem in problems), problems
        return ended, await ask_until_served(load), hit_s


def new_stack(running: RunningStack, old_node_pid: int) -> Stack:
    """stack.json follows, a moment after the new node's ready line."""
    deadline_s = time.monotonic() + 5
    while (stack := read_stack(running.run_dir)).pids["node"] == old_node_pid:
        assert time.monotonic() < deadline_s, "stack.json still names the dead node"
        time.sleep(0.05)
    return stack


def test_a_killed_node_comes_back_and_triton_never_restarts(stack):
    """Streams in flight fail within a second, later ones at once, and the same stubs serve again."""
    before, node_pid = stub_processes(stack), stack.stack.pids["node"]
    ended, asked, killed_s = asyncio.run(lose_node(stack, signal.SIGKILL))
    recovered_s = time.monotonic() - killed_s
    print(f"served again after {recovered_s:.1f} s, {len(asked) - 1} requests were refused meanwhile")
    assert all(stream.error.startswith("unavailable: the node daemon died") for stream in ended)
    assert all(stream.ended_s - killed_s < 1.0 for stream in ended)
    refused = asked[:-1]
    assert refused
    assert all("unavailable: the node is starting again" in stream.error for stream in refused)
    assert all(stream.ended_s - stream.started_s < 1.0 for stream in refused)
    assert stub_processes(stack) == before, "Triton made new stubs"
    after = new_stack(stack, node_pid)
    assert gather(after).is_whole
    assert f"node (pid {node_pid}) ended with signal SIGKILL" in stack.log_path.read_text()


@pytest.mark.soak
def test_a_node_that_does_not_answer_is_replaced(stack):
    """SIGSTOP: its sockets stay open, so nobody notices by EOF. Every request still ends."""
    before, node_pid = stub_processes(stack), read_stack(stack.run_dir).pids["node"]
    ended, asked, _ = asyncio.run(lose_node(stack, signal.SIGSTOP))
    assert all(stream.error.startswith("unavailable: ") for stream in [*ended, *asked[:-1]])
    assert stub_processes(stack) == before
    assert not psutil.pid_exists(node_pid)
    assert "has not answered for 4 s; killing it" in stack.log_path.read_text()


def test_a_worker_that_hangs_is_replaced(stack):
    """SIGSTOP with streams in flight: they get an error after the hang time-out, and the next worker serves."""

    async def hang() -> tuple[list[Streamed], Streamed, int]:
        async with TritonLoad(stack.stack.triton_grpc) as load:
            streams = [
                asyncio.create_task(load.stream("chat", chat_text(f"Tell me about {index}."), LONG))
                for index in range(2)
            ]
            status = await asyncio.to_thread(
                wait_until, stack.stack.node_socket, lambda status: status.instances[0].num_running == 2
            )
            worker_pid = status.instances[0].worker_pid
            os.kill(worker_pid, signal.SIGSTOP)
            ended = await asyncio.gather(*streams)
            return ended, await load.stream("chat", chat_text("hi"), SHORT), worker_pid

    ended, again, hung_pid = asyncio.run(hang())
    assert all(stream.error.startswith("unavailable: the worker of this instance died") for stream in ended)
    assert again.error == ""
    assert not psutil.pid_exists(hung_pid)
    assert node_status(stack.stack.node_socket).instances[0].worker_restarts >= 1
