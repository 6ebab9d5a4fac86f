"""Models that others wrote, on a Triton that others started: scaled over gRPC alone, without failing a request."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from scaler.acting import instance_update
from scaler.acting.plain_target import PlainTarget
from scaler.acting.target import Limits
from scaler.acting.triton_target import TritonTarget
from scaler.deciding.observation import Counts
from scaler.errors import NeverSafe, UpdateStuck
from scaler.triton_client import TritonClient
from tests.e2e.plain_triton import PlainTriton, plain_triton, write_decoupled_model, write_plain_model
from tests.e2e.support import Outcomes, closed_loop_clients, echo, echo_request, echo_stub

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

HANG_WHEN = 'time.sleep(3600) if os.path.exists("{path}") else None'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("plain")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(folder: Path) -> AsyncIterator[PlainTriton]:
    repository = folder / "repository"
    write_plain_model(repository, "counted")
    write_plain_model(repository, "described", is_self_described=True)
    write_plain_model(repository, "hanging", on_initialize=HANG_WHEN.format(path=folder / "hang"))
    write_decoupled_model(repository, "streaming")
    with plain_triton(repository, "counted", "described", "hanging", "streaming") as started:
        yield started


@pytest_asyncio.fixture(loop_scope="module")
async def triton(server: PlainTriton) -> AsyncIterator[TritonClient]:
    client = TritonClient(server.grpc)
    yield client
    await client.close()


def target(triton: TritonClient, folder: Path, limits: Limits | None = None) -> PlainTarget:
    return PlainTarget(triton, folder, limits=lambda _: limits or Limits(), say=print)


async def answered(outcomes: Outcomes, num: int) -> None:
    """Returns when so many more requests are."""
    done = outcomes.num_ok + num
    while outcomes.num_ok < done:  # noqa: ASYNC110  # a counter of the clients
        await asyncio.sleep(0.02)


async def test_a_count_changes_in_place_under_load_and_no_request_fails(
    server: PlainTriton, triton: TritonClient, folder: Path
) -> None:
    """1 -> 3 -> 1: the counters go on, the first stub stays the same process, one group all the time."""
    made, first = target(triton, folder), server.stub_pids("counted")
    async with closed_loop_clients(server.grpc, "counted", 2) as outcomes:
        await answered(outcomes, 10)
        out = await made.scale("counted", 3, "queue")
        assert (out.before, out.after, out.in_place) == (1, 3, True)
        assert await made.counts("counted") == Counts(ready=3, room=5)
        assert first < server.stub_pids("counted")
        back = await made.scale("counted", 1, "quiet")
        assert (back.before, back.after, back.in_place) == (3, 1, True)
    assert outcomes.failures == []
    (group,) = (await triton.config("counted")).instance_group
    assert group.count == 1


async def test_a_config_that_triton_completed_is_reloaded_once_and_then_changes_in_place(
    server: PlainTriton, triton: TritonClient, folder: Path
) -> None:
    """No config.pbtxt at all: Triton compares with what it had before completing it. No request fails even then."""
    made = target(triton, folder)
    async with closed_loop_clients(server.grpc, "described", 2) as outcomes:
        await answered(outcomes, 50)
        first = await made.scale("described", 2, "queue")
        assert (first.after, first.in_place) == (2, False)
        await answered(outcomes, 10)
        second = await made.scale("described", 3, "queue")
        assert (second.after, second.in_place) == (3, True)
    assert outcomes.failures == []


async def test_a_start_that_hangs_is_not_counted_for_ever_and_blocks_only_its_own_model(
    server: PlainTriton, triton: TritonClient, folder: Path
) -> None:
    """Over gRPC there is no way back; who kills the stub on Triton's host frees it in about a second."""
    hang = folder / "hang"
    deadline_s = {True: 1.0, False: 60.0}
    made = PlainTarget(
        triton,
        folder,
        limits=lambda _: Limits(start_deadline_s=deadline_s[hang.exists()]),
        say=print,
    )
    before = server.stub_pids("hanging")
    hang.touch()
    starting = asyncio.create_task(made.scale("hanging", 2, "queue"))
    await asyncio.sleep(0.5)
    assert await made.counts("hanging") == Counts(ready=1, starting=1, room=6)
    with pytest.raises(UpdateStuck, match="not finished the update to 2 instances within 1 s"):
        await starting
    assert await made.counts("hanging") == Counts(ready=1, room=7)
    with pytest.raises(UpdateStuck, match="takes no other one before it ends"):
        await made.scale("hanging", 3, "queue")
    async with echo_stub(server.grpc) as stub:
        assert await echo(stub, "hanging", 1.0) == 1.0
    hang.unlink()
    for pid in server.stub_pids("hanging") - before:
        os.kill(pid, signal.SIGKILL)
    async with asyncio.timeout(60):
        while True:
            try:
                assert (await made.scale("hanging", 2, "queue")).after == 2
                break
            except UpdateStuck:
                await asyncio.sleep(0.1)
    assert server.stub_pids("hanging") > before


async def stream(stub: object, value: float) -> int:
    """Number of responses up to the final one."""
    call = stub.ModelStreamInfer()  # type: ignore[attr-defined]
    request = echo_request("streaming", value, [1])
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    await call.write(request)
    count = 0
    while (message := await call.read()) is not grpc.aio.EOF:
        assert message.error_message == ""
        count += len(message.infer_response.outputs)
        if message.infer_response.parameters["triton_final_response"].bool_param:
            await call.done_writing()
    return count


async def test_a_decoupled_model_is_scaled_in_only_when_no_stream_can_be_in_flight(
    server: PlainTriton, triton: TritonClient, folder: Path
) -> None:
    """Streams of 2 s: refused where their length is unknown; told 3 s, it waits and all 40 responses come."""
    with pytest.raises(NeverSafe, match="say how long an answer takes at most"):
        await target(triton, folder).scale("streaming", 1, "quiet")
    made = target(triton, folder, Limits(longest_stream_s=3.0))
    async with echo_stub(server.grpc) as stub:
        streams = [asyncio.create_task(stream(stub, 40)) for _ in range(4)]
        await asyncio.sleep(0.3)
        assert (await made.scale("streaming", 3, "queue")).after == 3, "adding waits for nothing"
        result = await made.scale("streaming", 1, "quiet")
        assert all(task.done() for task in streams)
        assert [task.result() for task in streams] == [40] * 4
        assert (result.after, result.in_place) == (1, True)
        assert await stream(stub, 2) == 2


async def test_to_zero_and_back_keeps_the_config(
    server: PlainTriton, triton: TritonClient, folder: Path
) -> None:
    """Another scaler process in the same run directory brings it back as it was."""
    config = await triton.config("counted")
    first = TritonTarget(server.grpc, folder, limits=lambda _: Limits(), say=print)
    assert (await first.scale("counted", 0, "idle")).after == 0
    assert await first.counts("counted") == Counts(ready=0, room=8)
    await first.close()
    second = TritonTarget(server.grpc, folder, limits=lambda _: Limits(), say=print)
    assert (await second.scale("counted", 2, "woken")).after == 2
    await second.close()
    back = await triton.config("counted")
    assert back.instance_group[0].count == 2
    assert instance_update.differences(back, config) == []


@pytest.mark.soak
async def test_a_hundred_cycles_under_load_fail_no_request(
    server: PlainTriton, triton: TritonClient, folder: Path
) -> None:
    """Out by one to three and back, all in place."""
    made = target(triton, folder)
    async with closed_loop_clients(server.grpc, "counted", 4) as outcomes:
        await answered(outcomes, 10)
        await made.scale("counted", 1, "quiet")
        for cycle in range(100):
            out = await made.scale("counted", 2 + cycle % 3, "queue")
            await answered(outcomes, 10)
            back = await made.scale("counted", 1, "quiet")
            assert (out.in_place, back.in_place, back.after) == (True, True, 1)
    print(f"{outcomes.num_ok} requests answered")
    assert outcomes.failures == []
