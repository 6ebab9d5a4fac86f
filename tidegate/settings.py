"""The launcher's settings: command line over environment (TIDEGATE_*) over default, checked on construction.

The order is written once, in `Settings.resolve`. Nothing here touches the machine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from contracts.logs import FORMATS
from contracts.stack import default_run_dir
from tidegate.launch_errors import SettingsInvalid

MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
DEVICE = re.compile(r"cpu|cuda(:GPU-[0-9a-fA-F-]+)?")
ENV_PREFIX = "TIDEGATE_"


DEFAULT_SPARES: Mapping[str, int] = {"chat": 2, "embed": 1}


@dataclass(frozen=True)
class Settings:
    """One `tidegate up`. Ports bind to `host`, which is loopback unless told."""

    run_dir: Path = field(default_factory=default_run_dir)
    """Sockets, logs, the served copy of the repository; 0700, one stack at a time."""
    host: str = "127.0.0.1"
    triton_http_port: int = 8000
    """Triton's own defaults, so that its clients find it."""
    triton_grpc_port: int = 8001
    triton_metrics_port: int = 8002
    gateway_port: int = 9000
    gateway_grpc_port: int = 9001
    """KServe v2, Triton's own service, behind keys, limits and the call log."""
    scaler_port: int = 9002
    scaler_metrics_port: int = 9003
    """Prometheus' figures of the scaler, and of the node; the gateway's stand at its own /metrics. 0: none."""
    node_metrics_port: int = 9004
    pool_bytes: int = 0
    """KV arena; 0: by `pool_share`."""
    pool_share: float = 0.0
    """Part of the available memory that the KV arena takes, up to 0.95; 0: a quarter, at most 2 GiB."""
    weights_budget_bytes: int = 0
    """Most that resident weights take; 0: the memory that is available at the start, less the KV arena."""
    device: str = "cpu"
    """Whose memory: "cpu", "cuda" (the first GPU), "cuda:GPU-UUID"."""
    num_cpus: int = 0
    """CPU threads shared by all workers; 0: as many as this process may use."""
    models: tuple[str, ...] = ("chat", "embed")
    """Entries of the repository, or names of registered models (they get an entry of their kind)."""
    spares: Mapping[str, int] = field(default_factory=lambda: DEFAULT_SPARES)
    """Warm workers that stand by, per served model: a scale-out of so many instances does not wait."""
    with_node: bool = True
    """False: Triton alone, for models that need no worker."""
    with_gateway: bool = True
    with_scaler: bool = True
    policy: Path | None = None
    """What the scaler may do; None: it observes, and changes nothing."""
    scaler_state_dir: Path | None = None
    """Where it keeps policy, pauses and reservations; None: RUN_DIR/scaler, which may not outlive a reboot."""
    ledger_url: str = ""
    """Keys, routes and the call log: sqlite:////path or postgresql://...; "": RUN_DIR/ledger.db, which may not
    outlive a reboot."""
    routes: Path | None = None
    """routes.yaml, looked at once a second; None: routes come from the ledger alone (`tidegate rollout`)."""
    requires_keys: bool = False
    """Every call but health needs an API key (`tidegate keys create`)."""
    tls_cert: Path | None = None
    """PEM, the chain included: both doors of the gateway speak TLS."""
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    """Clients must show a certificate that it signed."""
    redis_url: str = ""
    """Where several gateways share their limits; "": each counts for itself."""
    keeps_prompts: bool = False
    """The call log keeps what was asked."""
    with_tracing: bool = True
    """One trace per sampled call, from the gateway to the engine; only with a gateway, which samples."""
    trace_ratio: float = 0.01
    """Part of the calls that is traced whole, 0 to 1. Failed and slow ones are traced beside that."""
    trace_slow_s: float = 5.0
    """A call that took longer (a stream: until its first text) counts as slow."""
    otlp_endpoint: str = ""
    """Where spans go on to, http://host:4318; "": where OTEL_EXPORTER_OTLP_ENDPOINT says, or nowhere."""
    log_format: str = "text"
    """Of the lines in RUN_DIR/logs: text, json or logfmt. Triton's own stay as they are."""
    trace_port: int = 0
    """OTLP over HTTP, on loopback, for Triton's spans and others' of the same traces; 0: any that is free."""
    repository: Path | None = None
    """Another model repository than the one that ships; it is copied, never served from."""
    start_timeout_s: float = 300.0
    """For each process. Weights of many gigabytes take a while to reach the arena."""
    stop_timeout_s: float = 30.0
    """For each process; requests in flight finish within it."""
    worker_hang_timeout_s: float = 30.0
    """A worker with requests in flight that makes no progress for so long is killed."""
    node_hang_timeout_s: float = 20.0
    """A node that answers nothing for so long is killed and started again, and so is a scaler."""

    def __post_init__(self) -> None:
        for name in _PORTS:
            check_range(name, getattr(self, name), 0 if name in _OPTIONAL_PORTS else 1, 65535)
        check_range("pool_bytes", self.pool_bytes, 0, 2**50)
        check_range("pool_share", self.pool_share, 0, 0.95)
        check_range("weights_budget_bytes", self.weights_budget_bytes, 0, 2**50)
        if not DEVICE.fullmatch(self.device):
            raise SettingsInvalid(f"device = {self.device!r}, must be cpu, cuda or cuda:GPU-UUID")
        check_range("num_cpus", self.num_cpus, 0, 4096)
        for model, num in self.spares.items():
            check_range(f"spares[{model}]", num, 0, 64)
            if model not in self.models and model not in DEFAULT_SPARES:
                raise SettingsInvalid(
                    f"spares: {model!r} is not among the models served: {', '.join(self.models)}"
                )
        for name in ("start_timeout_s", "stop_timeout_s"):
            check_range(name, getattr(self, name), 1, 86400)
        for name in ("worker_hang_timeout_s", "node_hang_timeout_s"):
            check_range(name, getattr(self, name), 3, 86400)
        if self.requires_keys and not self.with_gateway:
            raise SettingsInvalid("requires_keys = True, but keys are the gateway's; leave out --no-gateway")
        if self.routes is not None and not self.with_gateway:
            raise SettingsInvalid(
                f"routes = {self.routes}, but routes are the gateway's; leave out --no-gateway"
            )
        if (self.tls_cert is None) != (self.tls_key is None):
            raise SettingsInvalid(
                f"tls_cert = {self.tls_cert} and tls_key = {self.tls_key}: one needs the other"
            )
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise SettingsInvalid(f"tls_client_ca = {self.tls_client_ca} needs tls_cert and tls_key")
        if self.log_format not in FORMATS:
            raise SettingsInvalid(f"log_format = {self.log_format!r}, must be one of {', '.join(FORMATS)}")
        check_range("trace_ratio", self.trace_ratio, 0, 1)
        check_range("trace_slow_s", self.trace_slow_s, 0, 86400)
        check_range("trace_port", self.trace_port, 0, 65535)
        if self.otlp_endpoint and not self.otlp_endpoint.startswith(("http://", "https://")):
            raise SettingsInvalid(
                f"otlp_endpoint = {self.otlp_endpoint!r}, must be the http:// or https:// of an OTLP/HTTP collector"
            )
        self._check_ports_differ()
        self._check_models()

    def _check_ports_differ(self) -> None:
        owner: dict[int, str] = {}
        for name in _PORTS:
            port = getattr(self, name)
            if port and port in owner:
                raise SettingsInvalid(f"{name} = {port} is {owner[port]} too; every port must differ")
            owner[port] = name

    def _check_models(self) -> None:
        if not self.models:
            raise SettingsInvalid("models = (), must name at least one model")
        for name in self.models:
            if not MODEL_NAME.fullmatch(name):
                raise SettingsInvalid(
                    f"models: {name!r} is no model name; letters, digits, '.', '_' and '-', at most 63, "
                    "starting with a letter or digit"
                )
        if repeated := {name for name in self.models if self.models.count(name) > 1}:
            raise SettingsInvalid(f"models: {', '.join(sorted(repeated))} named twice")

    @classmethod
    def resolve(cls, environ: Mapping[str, str], **given: object) -> Settings:
        """`given` (from the command line; None means not given) over `environ` over the defaults.

        Raises SettingsInvalid. TIDEGATE_ variables that are no setting are ignored: others share the prefix.
        """
        chosen: dict[str, object] = {}
        for item in fields(cls):
            if given.get(item.name) is not None:
                chosen[item.name] = given[item.name]
            elif (raw := environ.get(ENV_PREFIX + item.name.upper())) and item.name in _READERS:
                chosen[item.name] = _READERS[item.name](ENV_PREFIX + item.name.upper(), raw)
        if unknown := given.keys() - {item.name for item in fields(cls)}:
            raise TypeError(f"no such settings: {sorted(unknown)}")
        return cls(**chosen)  # type: ignore[arg-type]  # each value was read for its field

    @property
    def ledger_url_used(self) -> str:
        """The given one, or the file in the run directory; "" without a gateway."""
        if not self.with_gateway:
            return ""
        return self.ledger_url or f"sqlite:///{(self.run_dir / 'ledger.db').absolute()}"

    @property
    def traces(self) -> bool:
        return self.with_tracing and self.with_gateway

    @property
    def ports(self) -> dict[str, int]:
        """Setting's name -> port, of those that this stack will listen on."""
        unused = {
            "gateway_port": not self.with_gateway,
            "gateway_grpc_port": not self.with_gateway,
            "scaler_port": not self.with_scaler,
            "scaler_metrics_port": not (self.with_scaler and self.scaler_metrics_port),
            "node_metrics_port": not (self.with_node and self.node_metrics_port),
        }
        return {name: getattr(self, name) for name in _PORTS if not unused.get(name)}


_PORTS = (
    "triton_http_port",
    "triton_grpc_port",
    "triton_metrics_port",
    "gateway_port",
    "gateway_grpc_port",
    "scaler_port",
    "scaler_metrics_port",
    "node_metrics_port",
)
_OPTIONAL_PORTS = ("scaler_metrics_port", "node_metrics_port")


def check_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise SettingsInvalid(f"{name} = {value}, must be from {low} to {high}")


def _read_int(key: str, raw: str) -> int:
    try:
        return int(raw)
    except ValueError:
        raise SettingsInvalid(f"{key} = {raw!r}, must be a whole number") from None


def _read_float(key: str, raw: str) -> float:
    try:
        return float(raw)
    except ValueError:
        raise SettingsInvalid(f"{key} = {raw!r}, must be a number") from None


def _read_bool(key: str, raw: str) -> bool:
    if raw.lower() in ("1", "true", "yes", "on"):
        return True
    if raw.lower() in ("0", "false", "no", "off"):
        return False
    raise SettingsInvalid(f"{key} = {raw!r}, must be 1 or 0")


def _read_str(_key: str, raw: str) -> str:
    return raw


def _read_path(_key: str, raw: str) -> Path:
    return Path(raw)


def _read_names(_key: str, raw: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in raw.split(",") if part.strip())


def _read_counts(key: str, raw: str) -> dict[str, int]:
    counts: dict[str, int] = {}
    for part in _read_names(key, raw):
        name, separator, number = part.partition("=")
        if not separator or not name.strip():
            raise SettingsInvalid(f"{key} = {raw!r}, must read like chat=2,embed=1")
        counts[name.strip()] = _read_int(key, number)
    return counts


_READERS: dict[str, Callable[[str, str], object]] = {
    "run_dir": _read_path,
    "host": _read_str,
    **dict.fromkeys((*_PORTS, "pool_bytes", "weights_budget_bytes", "num_cpus"), _read_int),
    "pool_share": _read_float,
    "device": _read_str,
    "models": _read_names,
    "spares": _read_counts,
    "with_node": _read_bool,
    "with_gateway": _read_bool,
    "with_scaler": _read_bool,
    "policy": _read_path,
    "scaler_state_dir": _read_path,
    "ledger_url": _read_str,
    "routes": _read_path,
    "requires_keys": _read_bool,
    "redis_url": _read_str,
    **dict.fromkeys(("tls_cert", "tls_key", "tls_client_ca"), _read_path),
    "keeps_prompts": _read_bool,
    "with_tracing": _read_bool,
    **dict.fromkeys(("trace_ratio", "trace_slow_s"), _read_float),
    "otlp_endpoint": _read_str,
    "log_format": _read_str,
    "trace_port": _read_int,
    "repository": _read_path,
    "start_timeout_s": _read_float,
    "stop_timeout_s": _read_float,
    "worker_hang_timeout_s": _read_float,
    "node_hang_timeout_s": _read_float,
}
