"""`python -m gateway --config FILE`: serve until SIGTERM, then finish running answers and exit 0."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import resource
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import uvicorn

from contracts import logs
from gateway.app import build_app
from gateway.catalog import load_catalog
from gateway.config import ConfigError, GatewayConfig, read_config
from gateway.http_protocol import MAX_HEAD_BYTES, protocol_with
from gateway.tls import Tls, http_context

READY_LINE = "tidegate-ready gateway"
KEEP_ALIVE_S = 75
"""Longer than clients keep idle connections (httpx 5 s, load balancers 60 s), so that they close first."""

LAST_WORDS_S = 1.0
LISTEN_BACKLOG = 2048


class _Server(uvicorn.Server):
    """Says when it serves. On SIGTERM it drains and returns; uvicorn's own would then die of the signal."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signal_number, self._stop)
        yield

    def _stop(self) -> None:
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            _spare_the_collector()
            print(READY_LINE, flush=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        # Requests that the end of the grace cancelled have yet to tell their clients so.
        if cancelled := set(self.server_state.tasks):
            await asyncio.wait(cancelled, timeout=LAST_WORDS_S)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m gateway", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="gateway.json")
    logs.configure("tidegate-gateway", "%(message)s")
    try:
        config = read_config(parser.parse_args().config)
        _serve(config)
    except ConfigError as exc:
        print(f"gateway: {exc}", file=sys.stderr)
        return 1
    return 0


def _raise_file_limit() -> None:
    """As many connections as the system allows, not as the shell's default says (often 1024)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _spare_the_collector() -> None:
    """What the imports made stays for ever; looking through it took 0.2 ms of processor time a call."""
    gc.collect()
    gc.freeze()


def _serve(config: GatewayConfig) -> None:
    _raise_file_limit()
    app = build_app(config, load_catalog(config.models))
    listener = _listen(config.host, config.port)
    tls = Tls.of(config)
    context = http_context(tls) if tls else None
    settings = uvicorn.Config(
        app,
        loop="uvloop",
        http=protocol_with(config.head_timeout_s),
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        ssl_context_factory=(lambda *_: context) if context else None,
        access_log=False,
        log_config=None,
        log_level="warning",
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=config.drain_grace_s,
        ws="none",
    )
    _Server(settings).run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    # asyncio switches Nagle off only where the protocol is named; else every first chunk waits 40 ms for an ACK
    # (test_the_first_text_does_not_wait_for_an_ack). socket.create_server leaves it unnamed.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(LISTEN_BACKLOG)
    except OSError as exc:
        listener.close()
        raise ConfigError(f"can't listen on {host}:{port}: {exc.strerror or exc}") from exc
    return listener


if __name__ == "__main__":
    sys.exit(main())
