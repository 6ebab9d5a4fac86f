"""`python -m telemetry --config FILE`: take, keep and pass on spans until SIGTERM."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from contracts import logs
from contracts.tracing.names import dialect_of
from contracts.tracing.store import StoreError, TraceStore
from telemetry.config import ConfigError, TelemetryConfig, read_config
from telemetry.exporting import Forwarder, exporter_for
from telemetry.intake import Intake
from telemetry.listening import OtlpServer, SpanListener

READY_LINE = "tidegate-ready telemetry"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m telemetry", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="telemetry.json")
    logs.configure("tidegate-telemetry", "%(message)s")
    # Before any thread: they all must leave these to `sigwait`.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    try:
        _serve(read_config(parser.parse_args().config))
    except (ConfigError, StoreError, OSError) as exc:
        print(f"telemetry: {exc}", file=sys.stderr)
        return 1
    return 0


def _serve(config: TelemetryConfig) -> None:
    exporter = exporter_for(config.otlp_endpoint, os.environ)
    forwarder = Forwarder(exporter, dialect_of(os.environ)) if exporter else None
    intake = Intake(
        TraceStore.create(Path(config.store_path)),
        forwarder,
        keep_s=config.keep_hours * 3600,
        max_spans=config.max_spans,
    )
    otlp = OtlpServer(config.host, config.port, intake.put)
    listener = SpanListener(Path(config.spans_socket), intake.put)
    print(READY_LINE, flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    listener.close()
    otlp.close()
    intake.close()
    if forwarder is not None:
        forwarder.close()


if __name__ == "__main__":
    sys.exit(main())
