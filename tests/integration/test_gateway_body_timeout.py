"""Clients that send half a body and fall silent, over a real socket."""

from __future__ import annotations

import asyncio
import json

import pytest

from gateway.testing import FakeTriton, RunningGateway, running_gateway

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

BODY = json.dumps({"model": "chat", "messages": [{"role": "user", "content": "hi"}]}).encode()
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: "


async def send(gateway: RunningGateway, *pieces: bytes, pause_s: float = 0.0) -> bytes:
    """All that comes back until the gateway closes, or has answered whole and kept the connection."""
    host, port = gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(HEAD + str(len(BODY)).encode() + b"\r\n\r\n")
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(pause_s)
        async with asyncio.timeout(20):
            return await reader.readuntil(b"\r\n\r\n") + await reader.read(65536)
    finally:
        writer.close()


async def test_half_a_body_is_answered_and_the_connection_closed() -> None:
    """Silent after the first half, or a byte now and then; a slow whole body is served."""
    async with (
        FakeTriton() as triton,
        running_gateway(triton.address, body_timeout_s=1.0) as gateway,
    ):
        silent, trickling, slow = await asyncio.gather(
            send(gateway, BODY[:20]),
            send(gateway, *(BODY[i : i + 1] for i in range(8)), pause_s=0.3),
            send(gateway, BODY[:20], BODY[20:], pause_s=0.2),
        )
    for answer in (silent, trickling):
        assert answer.startswith(b"HTTP/1.1 408 "), answer
        assert b"connection: close" in answer
        assert b"the body was not whole within 1 s" in answer
    assert slow.startswith(b"HTTP/1.1 200 "), slow
