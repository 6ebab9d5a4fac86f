"""What a protocol's sender promises, and what it is told of the conversation that a call goes on with."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Protocol

from loadtest.call import Call
from loadtest.generating.answer import Answer
from loadtest.generating.messages import Target

WARM_TIMEOUT_S = 2.0
SESSION_HEADER = "x-tidegate-session"


class Sender(Protocol):
    """One for all calls of its protocol in a process, made inside the event loop."""

    def prepare(self, call: Call, earlier: Sequence[tuple[Call, str]] = ()) -> Any:
        """The message, ready for the wire: made ahead of its time. `earlier`: turns and their answers."""

    async def send(self, call: Call, message: Any, answer: Answer) -> None:
        """Fills `answer` in. Raises CallFailed. A cancel ends the call and leaves in `answer` what had come."""

    async def close(self) -> None: ...


class Connection(Protocol):
    """What the senders to one address share."""

    async def warm(self) -> None:
        """Connects, and runs the client's code once. What the server says to it is nothing: the run will show."""


def headers_of(call: Call, target: Target) -> list[tuple[str, str]]:
    """Lower-case names, for HTTP and gRPC alike: the key, the session, and what the call brings (`traceparent`)."""
    headers = [*((name.lower(), value) for name, value in call.headers), *key_headers(target)]
    if call.session:
        headers.append((SESSION_HEADER, call.session))
    return headers


def key_headers(target: Target) -> list[tuple[str, str]]:
    key = os.environ.get(target.key_env, "") if target.key_env else ""
    return [("authorization", f"Bearer {key}")] if key else []
