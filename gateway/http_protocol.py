"""uvicorn's HTTP/1.1 and what it has not got: an end to waiting for a request's head, errors in OpenAI's shape.

uvicorn ends connections that are idle after an answer. One that never sends a whole head it keeps for ever, and ten
thousand of them keep every file descriptor.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

from gateway.errors import GatewayError, HeadTimeout, InvalidRequest

MAX_HEAD_BYTES = 32 * 1024
"""Request line and headers. Browsers' cookies stay below 8 KiB; an API's client sends 1."""


def protocol_with(head_timeout_s: float) -> type[asyncio.Protocol]:
    """The class that uvicorn makes one of per connection."""
    return type("GuardedHttp", (GuardedHttp,), {"head_timeout_s": head_timeout_s})


class GuardedHttp(H11Protocol):
    """A head must be whole `head_timeout_s` after the connection, or the head's first byte on it, came."""

    head_timeout_s = 20.0
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_timer()
        else:
            self._await_head()

    def send_400_response(self, msg: str) -> None:
        self._refuse(InvalidRequest(f"{msg.rstrip('.')}; a head may have {MAX_HEAD_BYTES} bytes"))

    def shutdown(self) -> None:
        self._stop_timer()
        super().shutdown()

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_timeout_s, self._head_is_late)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self.cycle is None or self.cycle.response_complete:
            self._refuse(HeadTimeout(f"the request's head was not whole within {self.head_timeout_s:g} s"))

    def _refuse(self, error: GatewayError) -> None:
        """Past h11, whose state may be wrong by now; the connection ends with it."""
        if self.transport.is_closing():
            return
        body = error.body()
        self.transport.write(
            b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s"
            % (error.status, b"Error", len(body), body)
        )
        self.transport.close()
