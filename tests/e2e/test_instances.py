"""Instances of a real model come, go and die under streaming load; no stream fails that did not have to."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from benchmarks.clients import Streamed, TritonLoad, closed_loop
from benchmarks.node import node_status, num_spares, wait_until
from contracts.node_pb2 import NodeStatus
from scaler.acting.actuator import InstanceChange
from scaler.acting.by_hand import scale
from scaler.acting.node_target import NodeTarget
from scaler.acting.target import Limits
from scaler.node_client import NodeClient
from scaler.triton_client import TritonClient
from tests.models import chat_text
from tidegate.testing import RunningStack

pytestmark = pytest.mark.e2e

LONG = {"max_tokens": 40, "temperature": 0, "ignore_eos": True}
SHORT = {"max_tokens": 1, "temperature": 0}


@pytest.fixture(autouse=True)
def one_instance_and_a_whole_pool_afterwards(running):
    yield
    asyncio.run(scale_chat(running, 1))
    wait_until(running.stack.node_socket, lambda status: status.pool.leased_bytes == 0)


async def scale_chat(running: RunningStack, num_instances: int) -> InstanceChange:
    return await scale(running.stack, "chat", num_instances, on_event=lambda _: None)


def chat_instances(running: RunningStack):
    status = node_status(running.stack.node_socket)
    return {entry.instance: entry for entry in status.instances if entry.model == "chat"}


def own_regions(running: RunningStack) -> set[str]:
    """The shared memory regions of this stack's stubs (named on their command lines; others run here too)."""
    stubs = psutil.Process(running.stack.pids["tritonserver"]).children()
    return {stub.cmdline()[2] for stub in stubs if stub.status() != psutil.STATUS_ZOMBIE}


def of_chat(status: NodeStatus):
    return [entry for entry in status.instances if entry.model == "chat"]


def states_of_chat(status: NodeStatus) -> set[str]:
    return {entry.state for entry in of_chat(status)}


@contextlib.asynccontextmanager
async def steady_streams(running: RunningStack, num_clients: int):
    """Clients that stream one answer after the other; yields the list that their streams are put into."""
    ended: list[Streamed] = []
    stopping = asyncio.Event()
    async with TritonLoad(running.stack.triton_grpc) as load:

        async def client(index: int) -> None:
            while not stopping.is_set():
                ended.append(await load.stream("chat", chat_text(f"Count to {index + 5}."), LONG))

        clients = [asyncio.create_task(client(index)) for index in range(num_clients)]
        try:
            yield ended
        finally:
            stopping.set()
            await asyncio.gather(*clients)


def assert_whole(streams: list[Streamed]) -> None:
    """Every one ran to its 40 tokens and got exactly one final response."""
    seen = [(s.error, s.finish_reason, s.num_tokens, s.num_finals) for s in streams]
    assert set(seen) == {("", "length", LONG["max_tokens"], 1)}


async def run_cycles(
    running: RunningStack, num_cycles: int, say: Callable[[str], None]
) -> tuple[list[Streamed], set[str]]:
    """Streams, and every region that a stub of this stack ever had. Stops at the first cycle that went wrong."""
    regions: set[str] = set()
    started_s = time.monotonic()
    async with steady_streams(running, 4) as streams:
        for cycle in range(num_cycles):
            out = await scale_chat(running, 2 + cycle % 3)
            regions |= own_regions(running)
            back = await scale_chat(running, 1)
            say(
                f"cycle {cycle + 1} of {num_cycles}: {out.ready_ms:.0f} ms out, {back.ready_ms:.0f} ms back,"
                f" {len(streams)} streams ended, {time.monotonic() - started_s:.0f} s"
            )
            assert out.in_place
            assert back.in_place
            if streams:  # in the first cycle none may have ended yet
                assert_whole(list(streams))
            assert len(await asyncio.to_thread(chat_instances, running)) == 1
    return streams, regions


def assert_cycles_leave_nothing(
    running: RunningStack, num_cycles: int, say: Callable[[str], None] = print
) -> None:
    """No failed stream, no reload, no orphan, no leaked byte, /dev/shm as before."""
    streams, regions = asyncio.run(run_cycles(running, num_cycles, say))

    assert_whole(streams)
    assert len(streams) > num_cycles
    left_over = {name for name in regions - own_regions(running) if (Path("/dev/shm") / name).exists()}
    assert left_over == set()
    status = wait_until(running.stack.node_socket, lambda s: s.pool.leased_bytes == 0)
    # Every worker process that lives is one that the node knows.
    known = {worker.pid for worker in status.workers}
    node = psutil.Process(running.stack.pids["node"])
    forked = {
        child.pid
        for child in node.children(recursive=True)
        if child.ppid() != node.pid and child.status() != psutil.STATUS_ZOMBIE
    }
    assert forked - known == set()


def test_cycles_of_out_and_in_under_load_fail_no_stream_and_leave_nothing(running):
    """Six cycles here; a hundred in `make soak`."""
    assert_cycles_leave_nothing(running, 6)


@pytest.mark.soak
def test_a_hundred_cycles_fail_no_stream_and_leave_nothing(running, capsys):
    """The long form; every cycle is told as it ends."""

    def say(text: str) -> None:
        with capsys.disabled():
            print(f"\n{text}", end="", flush=True)

    assert_cycles_leave_nothing(running, 100, say)


def test_a_drain_that_is_taken_back_or_left_behind_lets_the_instance_serve_on(running):
    """Load returns, or the scaler is killed: all streams whole, both instances stay, new streams land on both."""

    async def drain_and_take_back() -> list[Streamed]:
        await scale_chat(running, 2)
        triton = TritonClient(running.stack.triton_grpc, running.stack.triton_key)
        node = NodeClient(running.stack.node_socket)
        target = NodeTarget(triton, node, running.run_dir, limits=lambda _: Limits(), say=print)
        async with TritonLoad(running.stack.triton_grpc) as load, steady_streams(running, 4) as streams:
            await asyncio.to_thread(
                wait_until, running.stack.node_socket, lambda s: all(e.in_flight for e in of_chat(s))
            )
            scaling_in = asyncio.create_task(target.scale("chat", 1, "quiet"))
            await asyncio.to_thread(
                wait_until, running.stack.node_socket, lambda s: "draining" in states_of_chat(s)
            )
            assert (await target.counts("chat")).draining == 1
            scaling_in.cancel()
            await asyncio.gather(scaling_in, return_exceptions=True)
            assert (await target.counts("chat")).ready == 2
            left = next(iter(chat_instances(running)))
            await node.drain("chat", left)  # and its scaler is killed here
            await target.counts("chat")
            assert (await target.counts("chat")).ready == 2
            before = {name: entry.landed for name, entry in chat_instances(running).items()}
            more = [load.stream("chat", chat_text(f"Tell me about {n}."), LONG) for n in range(6)]
            assert_whole(list(await asyncio.gather(*more)))
            after = {name: entry.landed for name, entry in chat_instances(running).items()}
            assert all(after[name] > before[name] for name in before)
        await asyncio.gather(triton.close(), node.close())
        return streams

    assert_whole(asyncio.run(drain_and_take_back()))


def test_sixteen_streams_spread_over_four_instances(running):
    """Three to five on each; Triton alone would put nearly all on the newest."""

    async def landed() -> list[int]:
        await scale_chat(running, 4)
        before = {name: entry.landed for name, entry in chat_instances(running).items()}
        async with TritonLoad(running.stack.triton_grpc) as load:
            streams = await asyncio.gather(
                *(load.stream("chat", chat_text(f"Tell me about {index}."), LONG) for index in range(16))
            )
        assert_whole(list(streams))
        return [entry.landed - before[name] for name, entry in chat_instances(running).items()]

    spread = asyncio.run(landed())
    assert sum(spread) == 16
    assert min(spread) >= 3
    assert max(spread) <= 5


def test_after_a_long_history_new_instances_get_their_share_and_no_more(running):
    """600 requests on one, then 1 -> 3: the next 300 split 33 +- 10 % each (5,000 in `tidegate bench scaleout`)."""

    async def shares() -> list[float]:
        async with TritonLoad(running.stack.triton_grpc) as load:

            async def ask(index: int) -> None:
                assert (await load.stream("chat", str(index), SHORT)).error == ""

            await closed_loop(32, 600, ask)
            await scale_chat(running, 3)
            before = {name: entry.landed for name, entry in chat_instances(running).items()}
            await closed_loop(12, 300, ask)
        return [(entry.landed - before[name]) / 300 for name, entry in chat_instances(running).items()]

    measured = asyncio.run(shares())
    assert len(measured) == 3
    assert all(0.23 <= share <= 0.43 for share in measured), measured


def test_a_killed_worker_fails_its_own_requests_at_once_and_serves_again(running):
    """kill -9: a clear error, the sibling's streams finish, the instance answers again with a new worker."""

    async def kill_one() -> tuple[list[Streamed], float, int]:
        await scale_chat(running, 2)
        async with TritonLoad(running.stack.triton_grpc) as load:
            streams = [
                asyncio.create_task(load.stream("chat", chat_text(f"Count to {index}."), LONG))
                for index in range(4)
            ]
            await asyncio.to_thread(
                wait_until, running.stack.node_socket, lambda s: sum(e.in_flight for e in s.instances) == 4
            )
            victim = max(chat_instances(running).values(), key=lambda entry: entry.in_flight)
            killed_s = time.monotonic()
            os.kill(victim.worker_pid, signal.SIGKILL)
            ended = await asyncio.gather(*streams)
            again = await load.stream("chat", chat_text("hi"), SHORT)
            assert again.error == ""
            return list(ended), killed_s, victim.in_flight

    ended, killed_s, num_lost = asyncio.run(kill_one())
    failed = [stream for stream in ended if stream.error]
    assert len(failed) == num_lost
    assert all(stream.error.startswith("unavailable: the worker of this instance died") for stream in failed)
    assert all(stream.ended_s - killed_s < 1.0 for stream in failed)
    assert_whole([stream for stream in ended if not stream.error])
    status = wait_until(
        running.stack.node_socket,
        lambda s: all(entry.worker_pid for entry in s.instances if entry.model == "chat"),
        timeout_s=2,
    )
    assert sum(entry.worker_restarts for entry in status.instances) == 1


def test_a_client_that_leaves_frees_its_slot(running):
    """A stream of 2,000 tokens is cancelled after its first ones."""

    async def leave() -> None:
        async with TritonLoad(running.stack.triton_grpc) as load:
            sampling = {"max_tokens": 2000, "temperature": 0, "ignore_eos": True}
            stream = asyncio.create_task(load.stream("chat", chat_text("Talk for long."), sampling))
            await asyncio.to_thread(
                wait_until, running.stack.node_socket, lambda s: any(e.num_running for e in s.instances)
            )
            await asyncio.sleep(0.3)
            stream.cancel()
            await asyncio.gather(stream, return_exceptions=True)

    asyncio.run(leave())
    wait_until(running.stack.node_socket, lambda s: not any(e.in_flight for e in s.instances), timeout_s=3)


def test_scaling_out_takes_a_spare_and_the_next_one_is_warmed(running):
    """The number of spares comes back."""
    wait_until(running.stack.node_socket, lambda s: num_spares(s, "chat") >= 3, timeout_s=60)
    result = asyncio.run(scale_chat(running, 2))
    assert result.in_place
    assert len(result.added) == 1
    wait_until(running.stack.node_socket, lambda s: num_spares(s, "chat") >= 3, timeout_s=60)
