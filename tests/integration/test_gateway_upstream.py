"""What becomes of a request when Triton fails, is slow, or the client leaves."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable

import grpc
import httpx
import openai
import pytest
import pytest_asyncio

from gateway.testing import FakeTriton, RunningGateway, Script, running_gateway

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

Rig = tuple[FakeTriton, RunningGateway]
CHAT = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}
STREAM = CHAT | {"stream": True}
ENDLESS = Script(pieces=("x",) * 10_000, delay_s=0.01)
SILENT = Script(delay_s=30.0)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def started() -> AsyncIterator[Rig]:
    async with FakeTriton() as triton, running_gateway(triton.address) as gateway:
        yield triton, gateway


@pytest.fixture
def triton(started: Rig) -> FakeTriton:
    started[0].reset()
    return started[0]


@pytest_asyncio.fixture(loop_scope="module")
async def http(started: Rig) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=started[1].url) as http:
        yield http


async def until(holds: Callable[[], bool], timeout_s: float = 5.0) -> float:
    """Waits until it holds; returns how long that took."""
    started_s = time.monotonic()
    async with asyncio.timeout(timeout_s):
        while not holds():  # noqa: ASYNC110 - another process's doing, no event tells
            await asyncio.sleep(0.005)
    return time.monotonic() - started_s


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        ("invalid argument: the prompt needs 9 KV blocks, the pool has 8", 400, "invalid_value"),
        ("unavailable: no worker", 503, "upstream_unavailable"),
        ("deadline exceeded: in the queue", 504, "deadline_exceeded"),
        ("internal: broke", 500, "upstream_failed"),
        ("Stub process 'chat_0_0' is not healthy.", 503, "upstream_unavailable"),
    ],
)
@pytest.mark.parametrize("body", [CHAT, STREAM])
async def test_an_error_before_the_first_text_is_an_http_error(
    triton: FakeTriton, http: httpx.AsyncClient, body: dict[str, object], error: str, status: int, code: str
) -> None:
    """A stream too: the first reply decides, then the headers go."""
    triton.script = Script(pieces=(), error=error)
    response = await http.post("/v1/chat/completions", json=body)
    assert response.status_code == status
    assert response.json()["error"]["code"] == code
    assert response.headers.get("retry-after") == ("1" if status == 503 else None)


@pytest.mark.parametrize(
    "script",
    [
        Script(error="unavailable: the worker died"),
        Script(error="broken", code=grpc.StatusCode.UNAVAILABLE),
        Script(ending="cut"),
        Script(ending="no-flag"),
        Script(ending="no-reason"),
    ],
    ids=["error-message", "status", "cut", "reason-without-final", "final-without-reason"],
)
async def test_a_cut_stream_never_looks_complete(
    triton: FakeTriton, http: httpx.AsyncClient, started: Rig, script: Script
) -> None:
    """An error event, no [DONE], and the openai client raises (triton-practice F6)."""
    triton.script = script
    response = await http.post("/v1/chat/completions", json=STREAM)
    events = [line for line in response.text.split("\n\n") if line]
    assert '"content":" world"' in response.text
    assert "error" in json.loads(events[-1].removeprefix("data: "))
    assert "[DONE]" not in response.text
    async with openai.AsyncOpenAI(base_url=f"{started[1].url}/v1", api_key="none") as client:
        stream = await client.chat.completions.create(
            model="chat", messages=[{"role": "user", "content": "hi"}], stream=True
        )
        with pytest.raises(openai.APIError):
            [chunk async for chunk in stream]
    whole = await http.post("/v1/chat/completions", json=CHAT)
    assert whole.status_code >= 500


async def test_a_client_that_leaves_a_stream_ends_it_at_triton(
    triton: FakeTriton, http: httpx.AsyncClient, started: Rig
) -> None:
    """Within moments (triton-practice C1, C9); logged as 499."""
    triton.script = ENDLESS
    async with http.stream(
        "POST", "/v1/chat/completions", json=STREAM, headers={"x-request-id": "left-1"}
    ) as r:
        await anext(r.aiter_bytes())
        assert triton.num_active == 1
    assert await until(lambda: triton.num_cancelled == 1) < 0.5
    assert triton.num_active == 0
    await until(lambda: bool(started[1].access_lines_of("left-1")))
    (line,) = started[1].access_lines_of("left-1")
    assert line["status"] == 499


@pytest.mark.parametrize("script", [SILENT, ENDLESS], ids=["silent", "talking"])
@pytest.mark.parametrize("body", [CHAT, STREAM], ids=["whole", "stream"])
async def test_a_client_that_leaves_before_the_answer_ends_it_at_triton(
    triton: FakeTriton, http: httpx.AsyncClient, body: dict[str, object], script: Script
) -> None:
    """Also when nothing is sent that could fail: the whole answer, and the wait for the first text (C2)."""
    triton.script = script
    asking = asyncio.create_task(http.post("/v1/chat/completions", json=body))
    await until(lambda: triton.num_active == 1)
    asking.cancel()
    assert await until(lambda: triton.num_cancelled == 1) < 0.5
    assert triton.num_active == 0


async def test_a_whole_answer_that_is_left_is_charged_what_was_made(triton: FakeTriton) -> None:
    """It was charged its prompt only: who left a moment before the end had the engine's work for nothing. Under a
    token limit Triton is asked for a stream, so that what there is by then is known."""
    triton.script = Script(pieces=("a",) * 1000, delay_s=0.01)
    limits = {"chat": {"tokens_per_min": 100_000}}
    async with (
        running_gateway(triton.address, service_limits=limits) as gateway,
        httpx.AsyncClient(base_url=gateway.url) as client,
    ):
        headers = {"x-request-id": "left-whole"}
        asking = asyncio.create_task(client.post("/v1/chat/completions", json=CHAT, headers=headers))
        await until(lambda: triton.num_active == 1)
        await asyncio.sleep(0.3)
        asking.cancel()
        await until(lambda: bool(gateway.access_lines_of("left-whole")))
        (line,) = gateway.access_lines_of("left-whole")
        assert line["status"] == 499
        assert 1 <= line["output_tokens"] < 1000


async def test_a_client_that_leaves_does_not_cancel_an_embedding(
    triton: FakeTriton, http: httpx.AsyncClient
) -> None:
    """This Triton can crash on a cancelled unary call, so the call runs to its end (triton-practice C3)."""
    triton.embed_delay_s = 0.4
    with pytest.raises(httpx.ReadTimeout):
        await http.post("/v1/embeddings", json={"model": "embed", "input": "a"}, timeout=0.1)
    await asyncio.sleep(0.6)
    assert (len(triton.embed_batches), triton.num_unary_cancelled) == (1, 0)


async def test_a_timeout_reaches_the_engine_and_is_kept_here(
    triton: FakeTriton, http: httpx.AsyncClient
) -> None:
    """As deadline_unix_ms; the gateway's own timer holds when the engine's does not (triton-practice C12)."""
    triton.script = SILENT
    triton.embed_delay_s = 1.0
    headers = {"x-tidegate-timeout-s": "0.2"}
    for path, body in (
        ("chat/completions", CHAT),
        ("chat/completions", STREAM),
        ("embeddings", {"model": "embed", "input": "a"}),
    ):
        started_s = time.time()
        response = await http.post(f"/v1/{path}", json=body, headers=headers)
        assert response.status_code == 504
        assert 0.2 <= time.time() - started_s < 0.9
    assert abs(triton.generates[0].parameters["deadline_unix_ms"] / 1000 - time.time()) < 3
    assert triton.num_cancelled == 2
    await asyncio.sleep(1.0)
    assert triton.num_unary_cancelled == 0


async def test_the_failure_of_one_prompt_is_the_answer(triton: FakeTriton, http: httpx.AsyncClient) -> None:
    """With several side by side, the first failure ends the others."""
    triton.script = Script(pieces=(), error="unavailable: no worker")
    response = await http.post("/v1/completions", json={"model": "chat", "prompt": ["a", "b", "c"]})
    assert (response.status_code, response.json()["error"]["message"]) == (503, "no worker")


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, 400),
        (grpc.StatusCode.NOT_FOUND, 404),
        (grpc.StatusCode.UNAVAILABLE, 503),
        (grpc.StatusCode.INTERNAL, 500),
    ],
)
async def test_an_embedding_error_gets_its_status(
    triton: FakeTriton, http: httpx.AsyncClient, code: grpc.StatusCode, status: int
) -> None:
    """From the gRPC code."""
    triton.embed_error = (code, "no")
    response = await http.post("/v1/embeddings", json={"model": "embed", "input": "a"})
    assert response.status_code == status


async def test_an_embedding_of_nan_is_an_error(triton: FakeTriton, http: httpx.AsyncClient) -> None:
    """No null in a vector."""
    triton.embed_value = float("nan")
    response = await http.post("/v1/embeddings", json={"model": "embed", "input": "a"})
    assert response.status_code == 500
    assert "NaN" in response.json()["error"]["message"]


async def test_fifty_streams_do_not_mix(triton: FakeTriton, http: httpx.AsyncClient) -> None:
    """Each is one stream at Triton, with its own text, and none is left behind."""
    triton.script = Script(pieces=("a", "b", "c", "d"), delay_s=0.02)
    bodies = [STREAM | {"messages": [{"role": "user", "content": str(index)}]} for index in range(50)]
    async with httpx.AsyncClient(base_url=http.base_url, limits=httpx.Limits(max_connections=60)) as many:
        answers = await asyncio.gather(*(many.post("/v1/chat/completions", json=body) for body in bodies))
    assert all(answer.text.endswith("data: [DONE]\n\n") for answer in answers)
    assert sorted(seen.text for seen in triton.generates) == sorted(
        f"<|im_start|>user\n{index}<|im_end|>\n<|im_start|>assistant\n" for index in range(50)
    )
    # The answer's last byte may come before Triton has seen its stream end.
    await until(lambda: triton.num_active == 0)
    assert triton.num_cancelled == 0


async def test_ready_says_what_is_missing(triton: FakeTriton, http: httpx.AsyncClient) -> None:
    """Live is about the gateway alone."""
    assert (await http.get("/health/ready")).json() == {
        "status": "ready",
        "triton": True,
        "models": {"chat": True, "embed": True},
    }
    triton.ready_models = {"chat"}
    response = await http.get("/health/ready")
    assert (response.status_code, response.json()["models"]["embed"]) == (503, False)
    triton.is_live = False
    assert (await http.get("/health/ready")).json()["triton"] is False
    assert (await http.get("/health/live")).status_code == 200
