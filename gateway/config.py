"""Settings of the gateway: one JSON file, written by `tidegate up`."""

from __future__ import annotations

from pathlib import Path

import msgspec

from contracts.stack import ServedModel
from contracts.triton_key import read_triton_key
from gateway.limiter import WhenGone
from gateway.principal import Limits

MIB = 1024 * 1024


class ConfigError(ValueError):
    """The configuration file is wrong; the text names the file and the key."""


class GatewayConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything the gateway is told. Unknown keys raise."""

    host: str = "127.0.0.1"
    port: int = 9000
    grpc_port: int = 0
    """KServe over gRPC, Triton's own service behind keys and limits; 0: none."""
    max_grpc_message_bytes: int = 64 * MIB
    """A longer request is refused with RESOURCE_EXHAUSTED."""
    triton_grpc: str
    """host:port of Triton's gRPC endpoint, or dns:///name:port, whose every address is one (a headless Service)."""
    more_tritons: list[str] = []
    """Others that serve the same models, likewise; calls go to the least loaded."""
    triton_key_file: str = ""
    """Holds the key of Triton's restricted calls; "": it restricts none."""
    models: list[ServedModel]
    batch_models: list[str] = []
    """Served by Triton and reached over gRPC alone: no call of the OpenAI API has tensors."""
    max_body_bytes: int = 8 * MIB
    """A longer body is refused with 413 while it is read. 8 MiB of text is past any context served here."""
    head_timeout_s: float = 20.0
    """A connection that has sent no whole request line and headers by then is answered with 408."""
    body_timeout_s: float = 60.0
    """A body that is not whole by then is answered with 408."""
    send_timeout_s: float = 60.0
    """A client that takes nothing of its streamed answer for so long is given up."""
    num_channels: int = 2
    """gRPC connections to Triton; requests take turns. One is a bottleneck at hundreds of streams."""
    drain_grace_s: int = 30
    """After SIGTERM running answers have this long to finish."""
    max_embed_batch: int = 32
    """Texts a call to Triton carries: max_batch_size of `embed`."""
    scaler_grpc: str = ""
    """host:port of the scaler, which wakes models without an instance; "": nobody does, and the answer is 503."""
    wake_timeout_s: float = 30.0
    """A request waits so long for its model to come back. A start from resident weights takes well below 1 s."""

    tls_cert: str = ""
    """PEM, the chain included; both doors speak TLS then. "": neither does."""
    tls_key: str = ""
    tls_client_ca: str = ""
    """Clients must show a certificate that it signed (mutual TLS), for health too. "": they need none."""

    node_socket: str = ""
    """The node daemon's control socket, for the console's map of the pool; "": it has none."""
    traces_path: str = ""
    """The file of kept traces, for the console; "": none are kept."""
    triton_metrics: str = ""
    """host:port of Triton's Prometheus metrics, for the console; "": they are not asked."""

    ledger_url: str = ""
    """Keys, routes and the call log: sqlite:////path or postgresql://...; "": none of them."""
    requires_keys: bool = False
    """Every call but health needs an API key."""
    routes_path: str = ""
    """routes.yaml; looked at once a second. "": routes come from the ledger alone (`tidegate rollout`)."""
    service_limits: dict[str, Limits] = {}
    """Service -> what all its callers together may use."""
    redis_url: str = ""
    """redis://host:port/db where several gateways share their limits; "": each counts for itself."""
    limits_when_gone: WhenGone = "closed"
    """While Redis does not answer: "closed" refuses callers who have limits, "open" lets them through."""
    keeps_prompts: bool = False
    """The call log keeps what was asked. Off: it never holds content."""
    call_log_days: float = 90.0
    """Older calls are deleted."""

    spans_socket: str = ""
    """Where spans go (the telemetry process); "": nothing is traced."""
    trace_ratio: float = 0.01
    """Part of the calls that is traced whole."""
    trace_slow_s: float = 5.0
    """A call that took so long, or a stream whose first text did, is kept like one that failed."""

    def __post_init__(self) -> None:
        names = [model.name for model in self.models]
        _require(len(set(names)) == len(names), f"models = {names}, each name may stand there once")
        _require(0 <= self.port <= 65535, f"port = {self.port}, must be from 0 to 65535")
        _require(
            bool(self.tls_cert) == bool(self.tls_key),
            f"tls_cert = {self.tls_cert!r} and tls_key = {self.tls_key!r}: one needs the other",
        )
        _require(
            bool(self.tls_cert) or not self.tls_client_ca,
            "tls_client_ca needs tls_cert and tls_key: clients show certificates over TLS",
        )
        _require(
            bool(self.ledger_url) or not self.requires_keys,
            "requires_keys needs a ledger_url: keys lie there",
        )
        _require(
            bool(self.ledger_url) or not self.routes_path,
            "routes_path needs a ledger_url: revisions lie there",
        )
        for key in ("head_timeout_s", "body_timeout_s", "send_timeout_s", "wake_timeout_s", "call_log_days"):
            _require(getattr(self, key) > 0, f"{key} = {getattr(self, key)}, must be above 0")
        _require(0 <= self.trace_ratio <= 1, f"trace_ratio = {self.trace_ratio}, must be from 0 to 1")
        _require(0 <= self.grpc_port <= 65535, f"grpc_port = {self.grpc_port}, must be from 0 to 65535")
        for key in (
            "max_body_bytes",
            "max_grpc_message_bytes",
            "num_channels",
            "drain_grace_s",
            "max_embed_batch",
        ):
            _require(getattr(self, key) >= 1, f"{key} = {getattr(self, key)}, must be at least 1")

    def triton_key(self) -> str:
        """Raises ConfigError when it can't be read."""
        try:
            return read_triton_key(self.triton_key_file)
        except OSError as exc:
            raise ConfigError(
                f"triton_key_file {self.triton_key_file} can't be read: {exc.strerror}"
            ) from exc


def _require(holds: bool, text: str) -> None:
    if not holds:
        raise ValueError(text)


def read_config(path: Path) -> GatewayConfig:
    """Raises ConfigError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=GatewayConfig)
    except (OSError, msgspec.MsgspecError, ValueError) as exc:
        raise ConfigError(f"gateway config {path}: {exc}") from exc
