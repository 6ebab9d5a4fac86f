"""Spans on their way to the telemetry process: one packet on a Unix socket, never a wait, never an exception.

When nobody listens, or reads too slowly, spans are dropped and counted. No thread, nothing that a fork breaks.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence

from contracts.tracing.span import Span, encode_spans

SPANS_SOCKET_NAME = "spans.sock"
SPANS_SOCKET_VARIABLE = "TIDEGATE_SPANS_SOCKET"
MAX_PACKET_BYTES = 128 * 1024
"""A packet must fit the socket's buffer (212,992 bytes on Linux, its overhead included)."""
RECONNECT_S = 0.5


class SpanSender:
    """From any thread. `path` "": tracing is off, and nothing is ever sent."""

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._next_try_s = float("-inf")
        self.num_dropped = 0

    @classmethod
    def from_env(cls) -> SpanSender:
        return cls(os.environ.get(SPANS_SOCKET_VARIABLE, ""))

    @property
    def is_on(self) -> bool:
        return bool(self._path)

    def send(self, spans: Sequence[Span]) -> None:
        """All of them, or none."""
        if not self._path or not spans:
            return
        packet = encode_spans(spans)
        with self._lock:
            is_sent = len(packet) <= MAX_PACKET_BYTES and (self._send(packet) or self._send(packet))
            self.num_dropped += 0 if is_sent else len(spans)

    def close(self) -> None:
        with self._lock:
            self._disconnect()

    def _send(self, packet: bytes) -> bool:
        """False: it did not go. After a break of the connection a second try goes over a new one."""
        connected = self._socket or self._connect()
        if connected is None:
            return False
        try:
            connected.send(packet)
            return True
        except BlockingIOError:
            return False
        except OSError:
            self._disconnect()
            return False

    def _connect(self) -> socket.socket | None:
        if self._clock() < self._next_try_s:
            return None
        made = socket.socket(
            socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        )
        try:
            made.connect(self._path)
        except OSError:
            made.close()
            self._next_try_s = self._clock() + RECONNECT_S
            return None
        self._socket = made
        return made

    def _disconnect(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
            self._socket = None
