"""OpenAI's API over HTTP: streamed chat, and embeddings.

A chunk counts when its delta carries text; the role chunk, the finish reason and the usage are no tokens. How many
tokens a chunk holds is told by `usage` in the chunk (vLLM's `continuous_usage_stats`), else by the total at the end
of all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl as tls
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import aiohttp
import msgspec

from loadtest.call import Call
from loadtest.generating.answer import Answer, CallFailed
from loadtest.generating.messages import Target
from loadtest.generating.sender import WARM_TIMEOUT_S, headers_of, key_headers
from loadtest.generating.sse import Events

KEEP_ALIVE_S = 4.0
"""Below uvicorn's 5 s, so that a call never goes out on a connection that the server is about to close."""
_DONE = b"[DONE]"
_NEXT_TURN_ROLE = "assistant"


class _Cached(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Cached | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


class _Counted(msgspec.Struct):
    usage: _Usage | None = None


_decode_chunk = msgspec.json.Decoder(_Chunk).decode
_decode_counted = msgspec.json.Decoder(_Counted).decode


class HttpSession:
    """The connections that both senders share. Make it inside the event loop."""

    def __init__(self, target: Target) -> None:
        ssl: tls.SSLContext | bool = True
        if target.ca_file or target.cert_file:
            ssl = tls.create_default_context(cafile=target.ca_file or None)
            if target.cert_file:
                ssl.load_cert_chain(target.cert_file, target.cert_key_file)
        self.target = target
        # No limit: a call that waits for a connection of ours would wait in the generator, unseen.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S, ssl=ssl)
        no_timeout = aiohttp.ClientTimeout(total=None, connect=None, sock_read=None, sock_connect=None)
        self._session = aiohttp.ClientSession(connector=connector, timeout=no_timeout, auto_decompress=True)

    @contextlib.asynccontextmanager
    async def post(
        self, call: Call, path: str, body: bytes, answer: Answer
    ) -> AsyncIterator[aiohttp.StreamReader]:
        """A good answer's body, to be read to its end, so that the connection serves again. Raises CallFailed."""
        headers = [("content-type", "application/json"), *headers_of(call, self.target)]
        answer.sent()
        try:
            async with self._session.post(self.target.http + path, data=body, headers=headers) as response:
                answer.instance = response.headers.get("x-tidegate-instance", "")
                if response.status != 200:
                    raise CallFailed(f"http {response.status}: {_shown(await response.read())}")
                yield response.content
        except (aiohttp.ClientError, OSError) as exc:
            raise CallFailed(f"connection: {type(exc).__name__}: {exc}") from exc

    async def warm(self) -> None:
        with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
            async with (
                asyncio.timeout(WARM_TIMEOUT_S),
                self._session.get(
                    self.target.http + "/v1/models", headers=key_headers(self.target)
                ) as response,
            ):
                await response.read()

    async def close(self) -> None:
        await self._session.close()


class ChatSender:
    """`openai_chat`."""

    def __init__(self, session: HttpSession) -> None:
        self._session = session

    def prepare(self, call: Call, earlier: Sequence[tuple[Call, str]] = ()) -> bytes:
        messages: list[Any] = []
        for turn, said in earlier:
            messages += [*turn.messages, {"role": _NEXT_TURN_ROLE, "content": said}]
        body: dict[str, Any] = {
            "model": call.service,
            "messages": [*messages, *call.messages],
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": call.temperature,
            "seed": call.seed,
        }
        if call.max_tokens:
            body["max_tokens"] = call.max_tokens
        if call.force_length:
            body |= {"ignore_eos": True, "min_tokens": call.max_tokens}
        return msgspec.json.encode(body)

    async def send(self, call: Call, message: bytes, answer: Answer) -> None:
        events, is_done = Events(), False
        async with self._session.post(call, "/v1/chat/completions", message, answer) as body:
            async for piece in body.iter_any():
                now_s = time.monotonic()
                for data in events.feed(piece):
                    if data == _DONE:
                        is_done = True
                        answer.ended(now_s)
                    else:
                        _note(data, answer, now_s)
        if not is_done:
            raise CallFailed("cut: the stream ended without [DONE]")

    async def close(self) -> None:
        """The session is its maker's."""


class EmbeddingsSender:
    """`openai_embeddings`."""

    def __init__(self, session: HttpSession) -> None:
        self._session = session

    def prepare(self, call: Call, earlier: Sequence[tuple[Call, str]] = ()) -> bytes:
        return msgspec.json.encode({"model": call.service, "input": list(call.texts)})

    async def send(self, call: Call, message: bytes, answer: Answer) -> None:
        async with self._session.post(call, "/v1/embeddings", message, answer) as body:
            raw = await body.read()
        answer.ended_unary(time.monotonic())
        try:
            counted = _decode_counted(raw)
        except msgspec.DecodeError as exc:
            raise CallFailed(f"unreadable: {exc}") from exc
        answer.input_tokens = counted.usage.prompt_tokens if counted.usage else 0

    async def close(self) -> None:
        """The session is its maker's."""


def _note(data: bytes, answer: Answer, now_s: float) -> None:
    try:
        chunk = _decode_chunk(data)
    except msgspec.DecodeError as exc:
        raise CallFailed(f"unreadable: {exc}: {_shown(data)}") from exc
    if chunk.error is not None:
        raise CallFailed(f"stream error: {_shown(data)}")
    usage = chunk.usage
    text = "".join((c.delta.content or "") + (c.delta.reasoning_content or "") for c in chunk.choices)
    if text:
        answer.text.append(text)
        answer.chunk(now_s, usage.completion_tokens - answer.output_tokens if usage else None)
    if usage is not None:
        answer.input_tokens = usage.prompt_tokens
        details = usage.prompt_tokens_details
        answer.cached_tokens = (details.cached_tokens or 0) if details else 0
        answer.count(usage.completion_tokens)


def _shown(data: bytes) -> str:
    return " ".join(data[:160].decode(errors="replace").split())
