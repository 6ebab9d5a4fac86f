"""The launcher on the real Triton: what it says when it can't start, and what it leaves behind when it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import httpx
import pytest

from benchmarks.clients import TritonLoad, generate_request
from contracts.stack import Stack
from scaler.acting.actuator import Actuator
from scaler.triton_client import TritonClient
from tests.e2e.support import (
    UP,
    StubNode,
    echo,
    echo_request,
    echo_stub,
    launched,
    write_endless_model,
    write_model,
)
from tests.models import CHAT, model_folder
from tidegate import stubs
from tidegate.repository import fingerprint
from tidegate.testing import free_ports, running_stack

pytestmark = pytest.mark.e2e


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return tmp_path / "repository"


def wait_until(holds: Callable[[], bool], timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline_s, f"did not come true within {timeout_s} s"
        time.sleep(0.02)


def regions_of(known: list[stubs.Stub]) -> list[Path]:
    return [path for stub in known if (path := stubs.SHM_DIR / stub.region).exists()]


def test_a_taken_port_is_named_with_the_process_that_holds_it(repository: Path) -> None:
    """One line per taken port, and the option that chooses another."""
    write_model(repository, "echo")
    http, grpc_port = free_ports(2)
    with socket.create_server(("127.0.0.1", 0)) as holder:
        taken = holder.getsockname()[1]
        ports = {"triton_http_port": http, "triton_grpc_port": grpc_port, "triton_metrics_port": taken}
        with launched(repository, "echo", ports=ports) as up:
            assert up.process.wait(30) == 1
            assert f"triton_metrics_port {taken} is taken by pid {os.getpid()} (" in up.output
            assert "--triton-metrics-port" in up.output
            assert "triton_http_port" not in up.output


def test_a_model_that_fails_to_load_is_explained_in_tritons_own_words(repository: Path) -> None:
    """The exception of its `initialize` is shown; the launcher ends and leaves no process."""
    write_model(repository, "echo")
    write_model(repository, "bad", on_initialize='raise ValueError("weights are missing: nowhere.bin")')
    with launched(repository, "echo", "bad") as up:
        assert up.process.wait(60) == 1
        assert "ValueError: weights are missing: nowhere.bin" in up.output
        assert "failed to load 'bad' version 1" in up.output
        assert "CudaDriverHelper" not in up.output


def test_a_crash_of_triton_ends_the_stack_and_leaves_nothing(repository: Path) -> None:
    """Orphan stubs are killed and exactly their regions removed; the reason is said; nothing is restarted."""
    write_model(repository, "echo")
    foreign = stubs.SHM_DIR / "triton_python_backend_shm_region_00000000-0000-0000-0000-000000000000"
    foreign.touch()
    try:
        with launched(repository, "echo") as up:
            triton_pid = up.wait_ready().pids["tritonserver"]
            known = up.stubs()
            assert [stub.instance for stub in known] == ["echo-0"]
            assert regions_of(known)
            os.kill(triton_pid, signal.SIGSEGV)
            assert up.process.wait(30) == 1
            assert f"tritonserver (pid {triton_pid}) ended with signal SIGSEGV" in up.output
            wait_until(lambda: not any(stubs.is_running(stub.pid) for stub in known), 2)
            assert regions_of(known) == []
            assert not (up.run_dir / "stack.json").exists()
        assert foreign.exists()
    finally:
        foreign.unlink()


def test_sigterm_finishes_what_is_in_flight_and_exits_zero(repository: Path) -> None:
    """A request of one second sent before the signal is answered."""
    write_model(repository, "echo", batch_s=1.0)
    with launched(repository, "echo") as up:
        stack, known = up.wait_ready(), up.stubs()

        async def request_then_stop() -> float:
            async with echo_stub(stack.triton_grpc) as stub:
                answer = asyncio.ensure_future(echo(stub, "echo", 7.0))
                await asyncio.sleep(0.3)
                up.process.send_signal(signal.SIGTERM)
                return await answer

        assert asyncio.run(request_then_stop()) == 7.0
        assert up.process.wait(30) == 0
        assert regions_of(known) == []
        assert not any(stubs.is_running(pid) for pid in [*stack.pids.values(), *(stub.pid for stub in known)])


def test_children_do_not_outlive_a_killed_launcher(repository: Path) -> None:
    """Triton gets SIGTERM from the kernel when the launcher is gone, and takes its stubs along."""
    write_model(repository, "echo")
    with launched(repository, "echo") as up:
        stack, known = up.wait_ready(), up.stubs()
        up.process.kill()
        pids = [*stack.pids.values(), *(stub.pid for stub in known)]
        wait_until(lambda: not any(stubs.is_running(pid) for pid in pids), 15)
        assert regions_of(known) == []


@pytest.mark.parametrize("age_s", [0.7, 0.0])
def test_a_dead_stub_is_noticed_and_its_model_reloaded_as_it_was(repository: Path, age_s: float) -> None:
    """Triton goes on calling it READY. Two instances were served, so two are served again, in seconds.

    At age 0 the launcher has mostly not seen it alive, and must find out its model from what is missing.
    """
    init_log = write_model(repository, "echo")

    async def scale_out(stack: Stack, run_dir: Path) -> None:
        triton = TritonClient(stack.triton_grpc, stack.triton_key)
        await Actuator(triton, StubNode(stack.pids["tritonserver"]), run_dir, say=print).scale("echo", 2)
        await triton.close()

    with launched(repository, "echo") as up:
        stack = up.wait_ready()
        asyncio.run(scale_out(stack, up.run_dir))
        victim = next(stub for stub in up.stubs() if stub.instance == "echo-1")
        time.sleep(age_s)
        os.kill(victim.pid, signal.SIGKILL)
        wait_until(lambda: "serves again" in up.output, 10)
        assert f"stub {victim.pid} of " in up.output
        assert sorted(stub.instance for stub in up.stubs()) == ["echo-0", "echo-1"]
        assert len(init_log.read_text().splitlines()) == 4

        async def ask() -> float:
            async with echo_stub(stack.triton_grpc) as stub:
                return await echo(stub, "echo", 3.0)

        assert asyncio.run(ask()) == 3.0
        assert up.process.poll() is None


def test_a_stub_that_dies_with_open_streams_ends_the_stack_and_them(repository: Path) -> None:
    """Triton can't unload then, and would leave the streams open and silent. They get an error instead."""
    write_endless_model(repository, "endless")

    async def stream_until_killed(address: str, kill: Callable[[], None]) -> grpc.StatusCode:
        async with echo_stub(address) as stub:
            call = stub.ModelStreamInfer()
            await call.write(echo_request("endless", 1.0, [1]))
            assert (await call.read()).error_message == ""
            await asyncio.sleep(0.3)  # `execute` has returned: the stream is the stub's alone
            kill()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await asyncio.wait_for(call.read(), 15)
            return caught.value.code()

    with launched(repository, "endless", stop_timeout_s=2) as up:
        stack, known = up.wait_ready(), up.stubs()
        code = asyncio.run(
            stream_until_killed(stack.triton_grpc, lambda: os.kill(known[0].pid, signal.SIGKILL))
        )
        assert code is grpc.StatusCode.UNAVAILABLE
        assert up.process.wait(15) == 1
        assert "a stub of endless died, and Triton could not unload" in up.output
        assert regions_of(known) == []


async def test_first_scale_out_of_a_fresh_copy_is_in_place(repository: Path) -> None:
    """`initialize` runs once per instance, and the served folder is not written to."""
    init_log = write_model(repository, "echo")
    with launched(repository, "echo") as up:
        stack = await asyncio.to_thread(up.wait_ready)
        served = up.run_dir / "triton" / "repository"
        before = fingerprint(served)
        triton, node = TritonClient(stack.triton_grpc, stack.triton_key), StubNode(stack.pids["tritonserver"])
        result = await Actuator(triton, node, up.run_dir, say=print).scale("echo", 2)
        await triton.close()
        assert result.in_place
        assert result.added == ("echo-1",)
        assert [line.split()[0] for line in init_log.read_text().splitlines()] == ["echo-0_0", "echo-1_0"]
        assert fingerprint(served) == before
        assert "warning" not in up.output
        assert not any("__pycache__" in name for name in fingerprint(repository)), "the source was written to"


def test_a_second_stack_in_the_same_run_directory_is_refused(repository: Path) -> None:
    """Named with the pid of the first, which runs on."""
    write_model(repository, "echo")
    with launched(repository, "echo") as up:
        up.wait_ready()
        env = os.environ | {"TIDEGATE_RUN_DIR": str(up.run_dir)}
        second = subprocess.run(
            [sys.executable, "-c", UP], env=env, capture_output=True, text=True, timeout=30
        )
        assert second.returncode == 1
        assert f"already: pid {up.process.pid} (" in second.stderr
        assert up.process.poll() is None


def test_streams_cancelled_as_they_end_do_not_delay_a_stop():
    """Triton never releases them; the stop must not wait its whole time-out (30 s) for them."""
    model_folder(CHAT)

    async def cancel_late(address: str) -> None:
        async with TritonLoad(address) as load:

            async def one() -> None:
                request = generate_request(
                    "chat", "hi", {"max_tokens": 4, "temperature": 0, "ignore_eos": True}
                )

                async def requests():
                    yield request

                call = load.stub.ModelStreamInfer(requests())
                num_responses = 0
                async for _ in call:
                    num_responses += 1
                    if num_responses == 4:
                        call.cancel()
                        return

            for _ in range(8):
                await asyncio.gather(*(one() for _ in range(8)))

    with running_stack("--model", "chat") as running:
        asyncio.run(cancel_late(running.stack.triton_grpc))
        started_s = time.monotonic()
        assert running.stop() == 0
        assert time.monotonic() - started_s < 20


def test_a_stream_longer_than_the_stop_allows_ends_with_an_error_event():
    """Cut without a word it would look like an answer."""
    model_folder(CHAT)
    body = {
        "model": "chat",
        "stream": True,
        "max_tokens": 2000,
        "ignore_eos": True,
        "messages": [{"role": "user", "content": "Tell me a very long story."}],
    }
    with running_stack("--model", "chat", "--stop-timeout-s", "2") as running:
        url = f"http://{running.stack.gateway_http}/v1/chat/completions"
        with httpx.stream("POST", url, json=body, timeout=60) as response:
            lines = response.iter_lines()
            next(lines)
            running.process.send_signal(signal.SIGTERM)
            rest = "".join(lines)
        assert running.process.wait(30) == 0
    assert '"error"' in rest
    assert "[DONE]" not in rest
