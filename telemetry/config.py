"""Settings of the telemetry process: one JSON file, written by `tidegate up`."""

from __future__ import annotations

from pathlib import Path

import msgspec


class ConfigError(ValueError):
    """The configuration file is wrong; the text names the file and the key."""


class TelemetryConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything the telemetry process is told. Unknown keys raise."""

    spans_socket: str
    """Where our processes send their spans (Unix)."""
    store_path: str
    """The file with the latest traces (SQLite)."""
    host: str = "127.0.0.1"
    port: int
    """OTLP over HTTP, for Triton and for whoever else has spans of the same traces."""
    otlp_endpoint: str = ""
    """Where spans are passed on to, as OTEL_EXPORTER_OTLP_ENDPOINT: "/v1/traces" is added. "": nowhere, unless the
    environment names one."""
    keep_hours: float = 24.0
    max_spans: int = 100_000
    """The oldest traces go when there are more, or older ones. A span takes about 600 bytes of the file."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port = {self.port}, must be from 0 to 65535")
        if self.keep_hours <= 0:
            raise ValueError(f"keep_hours = {self.keep_hours}, must be above 0")
        if self.max_spans < 1:
            raise ValueError(f"max_spans = {self.max_spans}, must be at least 1")


def read_config(path: Path) -> TelemetryConfig:
    """Raises ConfigError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=TelemetryConfig)
    except (OSError, msgspec.MsgspecError, ValueError) as exc:
        raise ConfigError(f"telemetry config {path}: {exc}") from exc
