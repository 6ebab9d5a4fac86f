"""Settings of the scaler process: one JSON file, written by `tidegate up` or by hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from contracts.triton_key import read_triton_key
from scaler.acting.workload import Workload
from scaler.errors import ConfigInvalid
from scaler.serving.server import Access

TOKEN_VARIABLE = "TIDEGATE_SCALER_TOKEN"  # noqa: S105 - the variable's name


class KubernetesConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Models whose instances are pods."""

    workloads: dict[str, str]
    """Model -> "deployment/chat", "statefulset/chat" or PLURAL.VERSION.GROUP/NAME."""
    max_here: dict[str, int] = {}
    """With target both: from how many instances of a model on its own Triton the rest are pods, however much room
    there is."""
    namespace: str = "default"
    kubeconfig: str = ""
    """"": this pod's service account, else the user's own."""
    by_keda: bool = False
    """Pods are KEDA's to change: it is told the number when it asks (keda_address), and nothing is written."""
    lease: str = ""
    """Name of the Lease by which several scalers agree on the one that acts; "": this is the only one."""

    def __post_init__(self) -> None:
        for model, text in self.workloads.items():
            try:
                Workload.parse(text, self.namespace)
            except ValueError as exc:
                raise ValueError(f"kubernetes.workloads[{model}]: {exc}") from exc
        for model, count in self.max_here.items():
            _require(
                model in self.workloads and count >= 0,
                f"kubernetes.max_here[{model}] = {count}, must be 0 or more of a model with a workload",
            )


class ScalerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything the scaler is told. Unknown keys raise. Addresses are host:port; "" is: there is none."""

    state_dir: str
    """Policy, pauses and reservations are kept here; one scaler at a time."""
    policy_path: str = ""
    """Taken at the first start, and later when the file was edited since."""
    models: list[str] = []
    """Served here: those that the policy does not name are observed."""

    target: Literal["triton", "kubernetes", "both"] = "triton"
    """What is scaled: instances of the Triton, pods, or the Triton first and pods for what does not fit there."""
    kubernetes: KubernetesConfig | None = None
    dry_run: bool = False
    """Decisions are told and not carried out."""
    is_standby: bool = False
    """Where another scaler keeps its state in state_dir or scales this Triton, wait for its end; else refuse."""
    triton_grpc: str
    """Where figures come from, whatever the target."""
    triton_key_file: str = ""
    """Holds the key of Triton's restricted calls; "": it restricts none."""
    triton_metrics: str = ""
    """Without it the queue in Triton is not seen."""
    node_socket: str = ""
    """Of tidegate's node daemon; without it Triton's models are plain ones."""
    triton_pid: int = 0
    """Where Triton runs on this host: stubs that never finish starting can then be ended. 0: not known."""
    run_dir: str = ""
    """Of the stack: locks lie there that `tidegate scale` heeds too. "": state_dir."""
    tick_s: float = 1.0
    window_s: float = 15.0
    """How far utilisation looks back; the queue a third of it. Less follows faster, and flickers more."""

    host: str = "127.0.0.1"
    port: int = 9002
    tls_cert: str = ""
    tls_key: str = ""
    tls_client_ca: str = ""
    token_file: str = ""
    """Or the token itself in TIDEGATE_SCALER_TOKEN. It stands in no config, and in no log."""
    allow_insecure: bool = False
    """Listen beyond loopback without TLS or a token, where the network itself is trusted."""
    metrics_port: int = 0
    """Prometheus' figures, on `host`; 0: none."""
    spans_socket: str = ""
    """Where its changes go as spans (the telemetry process); "": nowhere."""
    keda_address: str = ""
    """Where KEDA asks, a port of its own. "": nowhere."""

    def __post_init__(self) -> None:
        _require(bool(self.state_dir), "state_dir is empty, must name a folder")
        _require(0 <= self.port <= 65535, f"port = {self.port}, must be from 0 to 65535")
        _require(
            0 <= self.metrics_port <= 65535, f"metrics_port = {self.metrics_port}, must be from 0 to 65535"
        )
        _require(0.05 <= self.tick_s <= 60, f"tick_s = {self.tick_s}, must be from 0.05 to 60")
        _require(1 <= self.window_s <= 300, f"window_s = {self.window_s}, must be from 1 to 300")
        _require(bool(self.triton_grpc), "triton_grpc is empty, must be host:port")
        _require(
            (self.target == "triton") == (self.kubernetes is None),
            f"target = {self.target} and the section kubernetes: both or neither must be about pods",
        )
        by_keda = self.kubernetes is not None and self.kubernetes.by_keda
        _require(by_keda == bool(self.keda_address), "keda_address and kubernetes.by_keda go together")
        _require(
            not by_keda or _is_address(self.keda_address),
            f"keda_address = {self.keda_address!r}, must be host:port",
        )
        _require(
            not (by_keda and self.dry_run), "dry_run = true with by_keda: KEDA acts on whatever it is told"
        )
        _require(
            len(set(self.models)) == len(self.models), f"models = {self.models}, each may stand there once"
        )

    def access(self, environ: Mapping[str, str]) -> Access:
        """Raises ConfigInvalid when the token can't be read."""
        return Access(
            host=self.host,
            port=self.port,
            cert_path=self.tls_cert,
            key_path=self.tls_key,
            client_ca_path=self.tls_client_ca,
            token=self._token(environ),
            allow_insecure=self.allow_insecure,
        )

    def triton_key(self) -> str:
        """Raises ConfigInvalid when it can't be read."""
        try:
            return read_triton_key(self.triton_key_file)
        except OSError as exc:
            raise ConfigInvalid(
                f"triton_key_file {self.triton_key_file} can't be read: {exc.strerror}"
            ) from exc

    def _token(self, environ: Mapping[str, str]) -> str:
        if not self.token_file:
            return environ.get(TOKEN_VARIABLE, "")
        try:
            token = Path(self.token_file).read_text().strip()
        except OSError as exc:
            raise ConfigInvalid(f"token_file {self.token_file} can't be read: {exc.strerror}") from exc
        if not token:
            raise ConfigInvalid(f"token_file {self.token_file} is empty; without it anybody would be let in")
        return token


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and port.isdigit() and int(port) <= 65535


def _require(holds: bool, text: str) -> None:
    if not holds:
        raise ValueError(text)


def read_config(path: Path) -> ScalerConfig:
    """Raises ConfigInvalid."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=ScalerConfig)
    except (OSError, msgspec.MsgspecError, ValueError) as exc:
        raise ConfigInvalid(f"scaler config {path}: {exc}") from exc
