"""A conversation with the gateway: messages out, deltas of text in. No terminal here (commands/chat.py has it)."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgspec

CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 300.0
"""Between two pieces of an answer; a full queue may keep the first one waiting."""

Clock = Callable[[], float]


class ChatError(Exception):
    """The gateway refused, failed, or is not there; the text is fit for a user."""


@dataclass(frozen=True)
class ChatOptions:
    """None: the model's or the gateway's own."""

    model: str = "chat"
    temperature: float | None = None
    max_tokens: int | None = None


@dataclass
class Answer:
    """One answer as far as it came. Times are of the clock that `ask` was given."""

    started_s: float
    first_text_s: float | None = None
    ended_s: float | None = None
    text: str = ""
    finish_reason: str = ""
    num_tokens: int | None = None
    """As the gateway counted; None when the answer was cut before it said."""

    @property
    def ttft_ms(self) -> float | None:
        return None if self.first_text_s is None else (self.first_text_s - self.started_s) * 1000

    @property
    def tokens_per_s(self) -> float | None:
        """From the first token on: the wait before it is told by `ttft_ms`."""
        if self.num_tokens is None or self.first_text_s is None or self.ended_s is None:
            return None
        span_s = self.ended_s - self.first_text_s
        return (self.num_tokens - 1) / span_s if self.num_tokens > 1 and span_s > 0 else None


@dataclass
class Conversation:
    """What has been said; grows by `ask`."""

    system: str = ""
    turns: list[dict[str, str]] = field(default_factory=list)

    def messages(self, prompt: str) -> list[dict[str, str]]:
        first = [{"role": "system", "content": self.system}] if self.system else []
        return [*first, *self.turns, {"role": "user", "content": prompt}]

    def add(self, prompt: str, answer: str) -> None:
        self.turns += [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]

    def reset(self) -> None:
        self.turns.clear()


class ChatClient:
    """Speaks to one gateway. `close` it."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str = "",
        transport: httpx.BaseTransport | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        timeout = httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        self._http = httpx.Client(base_url=base_url, timeout=timeout, headers=headers, transport=transport)
        self._base_url = base_url
        self._clock = clock

    def close(self) -> None:
        self._http.close()

    def ask(
        self, conversation: Conversation, prompt: str, options: ChatOptions, answer: Answer
    ) -> Generator[str, None, None]:
        """Yields the answer's text as it comes and keeps `answer` up to date. Raises ChatError.

        The turn joins the conversation when it is over: with what was said so far if the caller stops it
        (closing the iterator cancels the request), not at all if it failed.
        """
        body = request_body(conversation.messages(prompt), options)
        try:
            with self._http.stream("POST", "/v1/chat/completions", json=body) as response:
                if response.status_code != httpx.codes.OK:
                    response.read()
                    raise ChatError(error_text(response.content, response.status_code))
                for event in events(response.iter_lines()):
                    if text := self._read(event, answer):
                        yield text
        except httpx.ConnectError as exc:
            raise ChatError(f"no gateway on {self._base_url}; is `tidegate up` running? ({exc})") from exc
        except httpx.HTTPError as exc:
            raise ChatError(f"the answer was cut: {exc or type(exc).__name__}") from exc
        except (GeneratorExit, KeyboardInterrupt):
            answer.finish_reason = "stopped"
            raise
        finally:
            answer.ended_s = self._clock()
            if answer.text and answer.finish_reason:
                conversation.add(prompt, answer.text)
        if not answer.finish_reason:
            raise ChatError("the answer was cut: the gateway closed the stream before it was finished")

    def _read(self, event: dict[str, Any], answer: Answer) -> str:
        if "error" in event:
            raise ChatError(str(event["error"].get("message", event["error"])))
        if usage := event.get("usage"):
            answer.num_tokens = usage["completion_tokens"]
        text = ""
        for choice in event.get("choices", []):
            text += choice["delta"].get("content") or ""
            answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
        if text and answer.first_text_s is None:
            answer.first_text_s = self._clock()
        answer.text += text
        return text

    def start_answer(self) -> Answer:
        return Answer(self._clock())


def request_body(messages: list[dict[str, str]], options: ChatOptions) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": options.model,
        "messages": messages,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if options.temperature is not None:
        body["temperature"] = options.temperature
    if options.max_tokens is not None:
        body["max_tokens"] = options.max_tokens
    return body


def events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """Server-sent events -> JSON objects, up to [DONE]. Raises ChatError on what is none."""
    for line in lines:
        if not line.startswith("data:"):
            continue
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            return
        try:
            event = msgspec.json.decode(data)
        except msgspec.DecodeError as exc:
            raise ChatError(f"the gateway sent an event that is no JSON: {exc}") from exc
        if not isinstance(event, dict):
            raise ChatError(f"the gateway sent an event that is no object: {data[:80]}")
        yield event


def error_text(body: bytes, status: int) -> str:
    """OpenAI's error body -> its message, and the status where it says more."""
    try:
        message = msgspec.json.decode(body)["error"]["message"]
    except (msgspec.DecodeError, KeyError, TypeError):
        message = body[:200].decode(errors="replace") or "no reason given"
    way_out = "; `tidegate chat` sends the one in OPENAI_API_KEY" if status == 401 else ""
    return f"{message}{way_out} (HTTP {status})"


def printable(text: str) -> str:
    """A model may say escape sequences; the terminal must not obey them."""
    return "".join(char if char in "\n\t" or not _is_control(char) else "�" for char in text)


def _is_control(char: str) -> bool:
    return ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0
