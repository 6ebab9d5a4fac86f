"""A collector for tests: a real OTLP/HTTP server that keeps what it was sent. None of telemetry's code is in it."""

from __future__ import annotations

import gzip
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

WAIT_S = 30.0


@dataclass(frozen=True)
class Seen:
    """One span."""

    service: str
    trace_id: str
    span_id: str
    parent_id: str
    name: str
    start_unix_ns: int
    end_unix_ns: int
    attributes: dict[str, Any]
    is_error: bool
    status_text: str


class Receiver:
    """Close it."""

    def __init__(self) -> None:
        self._spans: list[Seen] = []
        self._changed = threading.Condition()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                receiver._take(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def all(self) -> list[Seen]:
        with self._changed:
            return list(self._spans)

    def trace(self, trace_id: str) -> list[Seen]:
        return [span for span in self.all() if span.trace_id == trace_id]

    def wait(self, is_there: Callable[[list[Seen]], bool]) -> None:
        deadline_s = time.monotonic() + WAIT_S
        with self._changed:
            while not is_there(self._spans):
                left_s = deadline_s - time.monotonic()
                assert left_s > 0, (
                    f"not in {WAIT_S} s; there are {Counter(span.name for span in self._spans)}"
                )
                self._changed.wait(left_s)

    def _take(self, request: Any) -> None:
        found = [
            _seen(span, resource_spans.resource)
            for resource_spans in request.resource_spans
            for scope_spans in resource_spans.scope_spans
            for span in scope_spans.spans
        ]
        with self._changed:
            self._spans += found
            self._changed.notify_all()


def _seen(span: Any, resource: Any) -> Seen:
    return Seen(
        service=_attributes(resource)["service.name"],
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        name=span.name,
        start_unix_ns=span.start_time_unix_nano,
        end_unix_ns=span.end_time_unix_nano,
        attributes=_attributes(span),
        is_error=span.status.code == 2,
        status_text=span.status.message,
    )


def _attributes(owner: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in owner.attributes}
