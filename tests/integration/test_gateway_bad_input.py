"""Bodies that break servers, over a real socket: a clear error, and the next request is served."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from gateway.testing import FakeTriton, RunningGateway, running_gateway

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

HELLO = [{"role": "user", "content": "hi"}]
MAX_BODY_BYTES = 100_000


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[RunningGateway]:
    async with (
        FakeTriton() as triton,
        running_gateway(triton.address, max_body_bytes=MAX_BODY_BYTES) as gateway,
    ):
        yield gateway


@pytest_asyncio.fixture(loop_scope="module")
async def http(gateway: RunningGateway) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=gateway.url) as http:
        yield http
        assert (await http.post("/v1/chat/completions", json=chat())).status_code == 200


def chat(**values: Any) -> dict[str, Any]:
    return {"model": "chat", "messages": HELLO} | values


def error_of(response: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return error


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "no valid JSON"),
        (b"[" * 10_000, "nested too deep"),
        (b'{"model":"chat","messages":[{"role":"user","content":"Hel', "no valid JSON"),
        (b"\xff\xfe\x80\x00\xc3\x28", "not UTF-8: invalid start byte at byte 0"),
        (json.dumps(chat(stream="yes")).encode(), "stream"),
        (json.dumps(chat(messages="hi")).encode(), "messages"),
        (json.dumps(chat(tools=[{"type": "function", "function": {"name": "f"}}])).encode(), "tools"),
        (json.dumps(chat(temprature=1)).encode(), "did you mean 'temperature'"),
        (json.dumps(chat(model="embed")).encode(), "can't generate"),
    ],
)
async def test_a_bad_body_is_400(http: httpx.AsyncClient, body: bytes, says: str) -> None:
    """With the reason."""
    response = await http.post("/v1/chat/completions", content=body)
    assert response.status_code == 400
    assert says in error_of(response)["message"]


async def test_a_long_body_is_413_before_it_is_read(http: httpx.AsyncClient) -> None:
    """The declared length is enough; the client still gets the answer while it sends (triton-practice F18)."""
    response = await http.post("/v1/chat/completions", content=b"x" * 50_000_000)
    assert response.status_code == 413
    assert str(MAX_BODY_BYTES) in error_of(response)["message"]


async def test_a_long_chunked_body_is_413_while_it_is_read(http: httpx.AsyncClient) -> None:
    """Nobody says how long it will be, so it is cut at the limit."""

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(500):
            yield b"x" * 10_000

    response = await http.post("/v1/chat/completions", content=endless())
    assert response.status_code == 413
    assert "more than 100000 bytes" in error_of(response)["message"]


async def test_a_body_that_never_ends_is_cut_off(gateway: RunningGateway) -> None:
    """It gets its 413 at the limit, not at its end, and the connection is closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rpartition(":")[2]))
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n" + b"x" * 10)
    answer = await asyncio.wait_for(reader.readuntil(b"\r\n"), 2)
    assert answer.startswith(b"HTTP/1.1 413")
    rest = await asyncio.wait_for(reader.read(), 10)
    assert b"connection: close" in rest.lower()
    writer.close()


async def test_a_compressed_body_is_refused(http: httpx.AsyncClient) -> None:
    """Nothing here inflates a bomb (triton-practice D19)."""
    response = await http.post("/v1/completions", content=b"\x1f\x8b", headers={"content-encoding": "gzip"})
    assert response.status_code == 400
    assert "content-encoding" in error_of(response)["message"]


async def test_a_prompt_over_the_context_says_both_numbers(http: httpx.AsyncClient) -> None:
    """Triton never sees it."""
    response = await http.post("/v1/completions", json={"model": "chat", "prompt": "x" * 5000})
    assert response.status_code == 400
    assert error_of(response)["code"] == "context_length_exceeded"
    assert "5000 tokens" in error_of(response)["message"]
    assert "256" in error_of(response)["message"]
    response = await http.post("/v1/embeddings", json={"model": "embed", "input": ["a", "x" * 257]})
    assert error_of(response)["param"] == "input[1]"


async def test_unknown_paths_and_methods_have_openais_shape(http: httpx.AsyncClient) -> None:
    """Clients parse every error the same way."""
    assert error_of(await http.get("/v2/nothing"))["code"] == "unknown_url"
    wrong = await http.get("/v1/chat/completions")
    assert wrong.status_code == 405
    assert error_of(wrong)["code"] == "method_not_allowed"


@pytest.mark.parametrize("timeout", ["0", "-1", "nan", "inf", "soon", "1e9"])
async def test_a_wrong_timeout_is_400(http: httpx.AsyncClient, timeout: str) -> None:
    """It names the header and the range."""
    for path, body in (("chat/completions", chat()), ("embeddings", {"model": "embed", "input": "a"})):
        response = await http.post(f"/v1/{path}", json=body, headers={"x-tidegate-timeout-s": timeout})
        assert response.status_code == 400
        assert error_of(response)["param"] == "x-tidegate-timeout-s"


async def test_the_request_id_is_echoed_or_made(http: httpx.AsyncClient) -> None:
    """An id that could forge a log line is replaced; errors carry one as well."""
    sent = await http.get("/v1/models", headers={"x-request-id": "job-7.a"})
    assert sent.headers["x-request-id"] == "job-7.a"
    made = await http.get("/nowhere", headers={"x-request-id": 'a"b c'})
    assert len(made.headers["x-request-id"]) == 32


async def test_the_log_has_one_line_a_request_and_no_content(
    gateway: RunningGateway, http: httpx.AsyncClient
) -> None:
    """Who asked what of which model and how it ended."""
    private = "the-private-word"
    headers = {"x-request-id": "logged-1"}
    body = chat(messages=[{"role": "user", "content": private}])
    await http.post("/v1/chat/completions", json=body, headers=headers)
    await http.post("/v1/chat/completions", json=body | {"top_p": 7}, headers=headers)
    async with asyncio.timeout(5):
        # The line is written after the answer's last byte.
        while len(lines := gateway.access_lines_of("logged-1")) < 2:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.01)
    done, refused = lines
    assert (done["status"], done["model"], done["output_tokens"]) == (200, "chat", 2)
    assert done["prompt_tokens"] == len("_user\n") + len(private) + len("_\n_assistant\n")
    assert (refused["status"], refused["error"]) == (400, "invalid_value")
    assert private not in gateway.log_path.read_text()
