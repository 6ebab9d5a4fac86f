"""The gateway as a process: it starts, says so, stops, and lives through Triton's absence."""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from gateway.testing import FakeTriton, Script, running_gateway, write_tiny_model

pytestmark = pytest.mark.integration

STREAM = {"model": "chat", "messages": [{"role": "user", "content": "hi"}], "stream": True}


async def test_sigterm_lets_running_streams_finish() -> None:
    """And takes no new ones; exit status 0."""
    async with FakeTriton(Script(pieces=("a", "b", "c", "d"), delay_s=0.2)) as triton:
        async with (
            running_gateway(triton.address) as gateway,
            httpx.AsyncClient(base_url=gateway.url) as http,
        ):
            async with http.stream("POST", "/v1/chat/completions", json=STREAM) as response:
                lines = response.aiter_text()
                await anext(lines)
                stopping = asyncio.create_task(gateway.stop())
                await asyncio.sleep(0.25)
                async with httpx.AsyncClient(base_url=gateway.url) as late:
                    with pytest.raises(httpx.ConnectError):
                        await late.get("/health/live")
                rest = "".join([text async for text in lines])
            assert rest.endswith("data: [DONE]\n\n")
            assert await asyncio.wait_for(stopping, 5) == 0
        assert triton.num_cancelled == 0


async def test_a_stream_longer_than_the_grace_ends_with_an_error() -> None:
    """The client learns why, Triton's stream is cancelled, and the process still exits 0."""
    async with FakeTriton(Script(pieces=("x",) * 10_000, delay_s=0.02)) as triton:
        async with (
            running_gateway(triton.address, drain_grace_s=1) as gateway,
            httpx.AsyncClient(base_url=gateway.url) as http,
            http.stream("POST", "/v1/chat/completions", json=STREAM) as response,
        ):
            lines = response.aiter_text()
            await anext(lines)
            stopping = asyncio.create_task(gateway.stop())
            rest = "".join([text async for text in lines])
            assert await asyncio.wait_for(stopping, 5) == 0
        assert "the gateway is shutting down" in rest
        assert "[DONE]" not in rest
        assert triton.num_cancelled == 1


async def test_the_first_text_does_not_wait_for_an_ack() -> None:
    """Nagle's algorithm would hold it for the kernel's 40 ms: headers and first chunk are two small writes."""
    async with (
        FakeTriton() as triton,
        running_gateway(triton.address) as gateway,
        httpx.AsyncClient(base_url=gateway.url) as http,
    ):
        waits_s = []
        for _ in range(20):
            started_s = time.perf_counter()
            async with http.stream("POST", "/v1/chat/completions", json=STREAM) as response:
                text = response.aiter_text()
                await anext(text)
                waits_s.append(time.perf_counter() - started_s)
                assert "[DONE]" in "".join([piece async for piece in text])
    assert statistics.median(waits_s) < 0.035


async def test_without_triton_it_lives_and_answers_503_and_comes_back() -> None:
    """A gateway that starts first, or outlives Triton, needs no restart."""
    async with FakeTriton() as triton:
        address = triton.address
    async with (
        running_gateway(address) as gateway,
        httpx.AsyncClient(base_url=gateway.url, timeout=10) as http,
    ):
        assert (await http.get("/health/live")).status_code == 200
        assert (await http.get("/health/ready")).status_code == 503
        for path, body in (("chat/completions", STREAM), ("embeddings", {"model": "embed", "input": "a"})):
            response = await http.post(f"/v1/{path}", json=body)
            assert (response.status_code, response.headers["retry-after"]) == (503, "1")
        async with FakeTriton(port=int(address.rpartition(":")[2])), asyncio.timeout(5):
            while (await http.get("/health/ready")).status_code != 200:  # noqa: ASYNC110 - a process, no event
                await asyncio.sleep(0.05)
            assert (await http.post("/v1/chat/completions", json=STREAM)).text.endswith("data: [DONE]\n\n")


async def start_with(folder: Path, **settings: object) -> tuple[int, str]:
    model = {"name": "chat", "kind": "generate", "weights": "w", "path": str(write_tiny_model(folder / "m"))}
    config = {"triton_grpc": "127.0.0.1:1", "models": [model], "port": 0} | settings
    (folder / "gateway.json").write_text(json.dumps(config))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "--config", str(folder / "gateway.json")), stderr=subprocess.PIPE
    )
    _, stderr = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode is not None
    return process.returncode, stderr.decode()


async def test_a_taken_port_and_a_wrong_setting_are_named(tmp_path: Path) -> None:
    """One line, no traceback, exit status 1."""
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        status, stderr = await start_with(tmp_path, port=port)
    assert status == 1
    assert stderr.endswith(f"can't listen on 127.0.0.1:{port}: Address already in use\n")
    assert stderr.count("\n") == 1
    status, stderr = await start_with(tmp_path, prot=1)
    assert status == 1
    assert "`prot`" in stderr
    assert "Traceback" not in stderr
