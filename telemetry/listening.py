"""Where spans come in: packets of our own on a Unix socket, and OTLP over HTTP from Triton and others."""

from __future__ import annotations

import contextlib
import gzip
import io
import logging
import os
import selectors
import socket
import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec

from contracts.tracing.sending import MAX_PACKET_BYTES
from contracts.tracing.span import Span, decode_spans
from telemetry.otlp import JSON_TYPE, PROTOBUF_TYPE, OtlpInvalid, read_otlp

logger = logging.getLogger("telemetry")

MAX_BODY_BYTES = 8 * 1024 * 1024
IDLE_TIMEOUT_S = 60.0
Put = Callable[[Sequence[Span]], None]


class SpanListener:
    """Takes packets of spans from any number of processes. Close it."""

    def __init__(self, path: Path, put: Put) -> None:
        self._put = put
        path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        self._listener.bind(str(path))
        path.chmod(0o600)
        self._listener.listen(256)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._wake, self._woken = os.pipe()
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="spans", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """What is in the sockets is read first."""
        os.write(self._woken, b".")
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self._selector.close()
        os.close(self._wake)
        os.close(self._woken)

    def _run(self) -> None:
        is_closing = False
        while ready := self._ready(is_closing):
            for one in ready:
                if one is self._listener:
                    self._accept()
                elif isinstance(one, socket.socket):
                    self._read(one)
                else:
                    is_closing = True
                    self._selector.unregister(self._wake)

    def _ready(self, is_closing: bool) -> list[Any]:
        """At the end without waiting: none is left then, not even a peer that has just come."""
        return [key.fileobj for key, _ in self._selector.select(0 if is_closing else None)]

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            peer, _ = self._listener.accept()
            peer.setblocking(False)
            self._selector.register(peer, selectors.EVENT_READ)

    def _read(self, peer: socket.socket) -> None:
        """All that is there. A peer that is gone, or says what is no packet of ours, is let go."""
        while True:
            try:
                packet = peer.recv(MAX_PACKET_BYTES)
                if not packet:
                    break
                self._put(decode_spans(packet))
            except BlockingIOError:
                return
            except (OSError, msgspec.MsgspecError) as exc:
                logger.warning("a process that sends spans is let go: %s", exc)
                break
        self._selector.unregister(peer)
        peer.close()


class OtlpServer:
    """POST /v1/traces. Close it. Raises OSError when the port is taken."""

    def __init__(self, host: str, port: int, put: Put) -> None:
        self._server = _Server((host, port), _Handler)
        self._server.put = put
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, name="otlp", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    put: Put


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = IDLE_TIMEOUT_S
    server: _Server

    def do_POST(self) -> None:
        length = self.headers.get("content-length", "")
        if self.path != "/v1/traces":
            self._refuse(404, "spans go to /v1/traces")
        elif not length.isdecimal() or int(length) > MAX_BODY_BYTES:
            self._refuse(413, f"content-length must be there, and at most {MAX_BODY_BYTES}")
        else:
            self._take(self.rfile.read(int(length)))

    def _take(self, body: bytes) -> None:
        content_type = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type not in (JSON_TYPE, PROTOBUF_TYPE):
            self._refuse(415, f"content-type must be {JSON_TYPE} or {PROTOBUF_TYPE}")
            return
        try:
            if self.headers.get("content-encoding") == "gzip":
                body = _unpacked(body)
            self.server.put(read_otlp(body, content_type))
        except (OtlpInvalid, OSError, EOFError) as exc:
            self._refuse(400, str(exc))
            return
        self._answer(200, content_type, b"{}" if content_type == JSON_TYPE else b"")

    def _refuse(self, status: int, text: str) -> None:
        self.close_connection = True
        self._answer(status, "text/plain", text.encode())

    def _answer(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", content_type)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """One line a batch of spans says nothing to anybody."""


def _unpacked(body: bytes) -> bytes:
    """Raises OSError and EOFError for what is no gzip, or is longer than a body may be."""
    with gzip.GzipFile(fileobj=io.BytesIO(body)) as stream:
        found = stream.read(MAX_BODY_BYTES + 1)
    if len(found) > MAX_BODY_BYTES:
        raise OSError(f"unpacked it has more than {MAX_BODY_BYTES} bytes")
    return found
