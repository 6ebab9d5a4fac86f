"""`python -m telemetry`: spans in by both ways, kept and passed on; a collector that is gone keeps nobody."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from contracts.tracing import names
from contracts.tracing.sending import SpanSender
from contracts.tracing.span import Span, SpanKind
from contracts.tracing.store import TraceStore
from tests.e2e.otlp_receiver import Receiver
from tidegate.testing import free_ports

pytestmark = pytest.mark.integration

WAIT_S = 30.0
TRACE = "0af7651916cd43dd8448eb211c80319c"


@dataclass(frozen=True)
class Running:
    process: subprocess.Popen[str]
    url: str
    folder: Path

    def send(self, *spans: Span) -> None:
        with contextlib.closing(SpanSender(str(self.folder / "spans.sock"))) as sender:
            sender.send(spans)
            assert sender.num_dropped == 0

    def wait_kept(self, trace_id: str, count: int) -> list[Span]:
        deadline_s = time.monotonic() + WAIT_S
        while True:
            with contextlib.closing(TraceStore.open(self.folder / "traces.db")) as store:
                if len(found := store.spans_of(trace_id)) >= count:
                    return found
            assert time.monotonic() < deadline_s, found
            time.sleep(0.05)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT_S)


@contextlib.contextmanager
def telemetry(folder: Path, otlp_endpoint: str = "", **environ: str) -> Iterator[Running]:
    (port,) = free_ports(1)
    config = folder / "telemetry.json"
    settings = {
        "spans_socket": str(folder / "spans.sock"),
        "store_path": str(folder / "traces.db"),
        "port": port,
    }
    config.write_text(json.dumps(settings | {"otlp_endpoint": otlp_endpoint}))
    command = [sys.executable, "-m", "telemetry", "--config", str(config)]
    env = {key: value for key, value in os.environ.items() if not key.startswith("OTEL_")} | environ
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        try:
            assert process.stdout.readline() == "tidegate-ready telemetry\n"
            yield Running(process, f"http://127.0.0.1:{port}/v1/traces", folder)
        finally:
            process.kill()


def span(span_id: str, parent_id: str = "", **attributes) -> Span:
    return Span(
        names.GATEWAY, TRACE, span_id, parent_id, "chat chat", SpanKind.SERVER, 10**18, 10**18 + 5, attributes
    )


OTLP = {
    "resourceSpans": [
        {
            "scopeSpans": [
                {
                    "spans": [
                        {
                            "traceId": TRACE,
                            "spanId": "b" * 16,
                            "parentSpanId": "a" * 16,
                            "name": "InferRequest",
                        }
                    ]
                }
            ]
        }
    ]
}


def test_spans_of_ours_and_tritons_are_kept_and_passed_on_under_the_names_that_were_asked_for(tmp_path):
    """A packet on the socket, JSON over HTTP; the collector gets protobuf, in the latest dialect."""
    with (
        contextlib.closing(Receiver()) as collector,
        telemetry(
            tmp_path, collector.url, OTEL_SEMCONV_STABILITY_OPT_IN="gen_ai_latest_experimental"
        ) as running,
    ):
        running.send(span("a" * 16, **{names.CACHE_WRITE_TOKENS: 16}))
        assert httpx.post(running.url, json=OTLP).json() == {}
        kept = running.wait_kept(TRACE, 2)
        collector.wait(lambda spans: len(spans) == 2)
        assert running.stop() == 0

    assert {each.name for each in kept} == {"chat chat", "InferRequest"}
    by_name = {each.name: each for each in collector.all()}
    assert by_name["InferRequest"].parent_id == by_name["chat chat"].span_id
    assert by_name["chat chat"].attributes == {"gen_ai.usage.cache_write.input_tokens": 16}


def test_a_collector_that_is_gone_costs_its_spans_and_no_time_at_the_end(tmp_path):
    """Nobody listens there. They are kept here all the same, and SIGTERM ends the process within seconds."""
    (nobody,) = free_ports(1)
    with telemetry(tmp_path, f"http://127.0.0.1:{nobody}") as running:
        running.send(span("a" * 16))
        assert len(running.wait_kept(TRACE, 1)) == 1
        assert running.stop() == 0


@pytest.mark.parametrize(
    ("content", "headers", "status"),
    [
        (b"{", {"content-type": "application/json"}, 400),
        (b"x", {"content-type": "text/plain"}, 415),
        (b"not gzip", {"content-type": "application/json", "content-encoding": "gzip"}, 400),
    ],
)
def test_what_is_no_otlp_is_refused_and_the_next_request_served(tmp_path, content, headers, status):
    """The port is open to everybody on this machine."""
    with telemetry(tmp_path) as running:
        assert httpx.post(running.url, content=content, headers=headers).status_code == status
        assert httpx.post(running.url, json=OTLP).status_code == 200


def test_a_body_longer_than_it_takes_is_refused_before_it_is_read(tmp_path):
    """So it says itself; nothing of it was sent."""
    with telemetry(tmp_path) as running:
        connection = http.client.HTTPConnection(httpx.URL(running.url).netloc.decode(), timeout=WAIT_S)
        connection.putrequest("POST", "/v1/traces")
        connection.putheader("content-length", "99999999999")
        connection.endheaders()

        assert connection.getresponse().status == 413
        connection.close()


def test_a_peer_that_sends_no_spans_is_let_go_and_others_are_heard(tmp_path):
    """Bytes that are no packet of ours."""
    with telemetry(tmp_path) as running:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
            stranger.connect(str(tmp_path / "spans.sock"))
            stranger.send(b"\xff\xff")
            stranger.settimeout(WAIT_S)
            assert stranger.recv(1) == b""
        running.send(span("a" * 16))

        assert len(running.wait_kept(TRACE, 1)) == 1


def test_what_was_sent_before_the_end_is_kept(tmp_path):
    """The last spans are those of the stop."""
    with telemetry(tmp_path) as running:
        running.send(*(span(f"{number:016x}") for number in range(1, 51)))
        assert running.stop() == 0
        assert len(running.wait_kept(TRACE, 50)) == 50
