"""What the launcher tells the node: `RUN_DIR/node.json`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import get_args

import msgspec
import psutil

from contracts.stack import KVPrecision, Precision, ServedModel
from python_backend.node.errors import ConfigInvalid, ModelInvalid

MAX_SPARES = 64
DEFAULT_SPARES = 1
DEFAULT_POOL_CEILING_BYTES = 2 << 30
DEFAULT_POOL_SHARE = 0.25
PAGE_BYTES = 4096
MAX_BYTES = 2**50
MAX_TOKENS = 2**31 - 1
MIN_HANG_TIMEOUT_S = 3.0
"""Idle workers give a sign of life once a second."""
MAX_HANG_TIMEOUT_S = 86400.0
SIZES = ("kv_floor_bytes", "kv_ceiling_bytes", "tenant_ceiling_bytes", "prefix_cache_bytes")
DEVICE = re.compile(r"cpu|cuda(:GPU-[0-9a-fA-F-]+)?")


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Checked by `read_config`; nothing else reads the file."""

    run_dir: str
    """Folder of the sockets, mode 0700; made if it is not there."""
    models: list[ServedModel]
    pool_bytes: int = 0
    """Size of the KV pool, rounded down to whole pages. 0: by `pool_share`."""
    pool_share: float = 0.0
    """Part of the free memory that the KV pool takes, 0 to 0.95. 0: a quarter, at most 2 GiB."""
    weights_budget_bytes: int = 0
    """Most that resident weights may take. 0: the free memory at the start, less the pool."""
    device: str = "cpu"
    """Whose memory it is: "cpu", "cuda" (the first GPU) or "cuda:GPU-UUID"."""
    num_cpus: int = 0
    """CPUs that the workers share. 0: all this process may run on."""
    worker_hang_timeout_s: float = 30.0
    """A worker with requests in flight that makes no progress for so long is killed."""
    metrics_host: str = "127.0.0.1"
    metrics_port: int = 0
    """Prometheus' figures; 0: none."""
    spares: dict[str, int] = {}
    """Warm workers to keep at hand per model; a model that is not named keeps one."""

    def num_spares(self, model: str) -> int:
        return self.spares.get(model, DEFAULT_SPARES)

    def cpu_budget(self) -> int:
        return self.num_cpus or len(os.sched_getaffinity(0))

    def pool_size_bytes(self, available_bytes: Callable[[], int] | None = None) -> int:
        """Whole pages; 0 when no model has a KV cache. `available_bytes`: the device's (default: the machine's)."""
        if all(model.kind != "generate" for model in self.models):
            return 0
        wanted = self.pool_bytes or self._shared_out((available_bytes or available_memory_bytes)())
        return wanted // PAGE_BYTES * PAGE_BYTES

    def _shared_out(self, available_bytes: int) -> int:
        if self.pool_share:
            return int(self.pool_share * available_bytes)
        return min(DEFAULT_POOL_CEILING_BYTES, int(DEFAULT_POOL_SHARE * available_bytes))


def read_config(path: Path) -> NodeConfig:
    """Raises ConfigInvalid."""
    try:
        config = msgspec.json.decode(path.read_bytes(), type=NodeConfig)
    except (OSError, msgspec.MsgspecError) as exc:
        raise ConfigInvalid(f"{path}: {exc}") from exc
    check_config(config)
    return config


def check_config(config: NodeConfig) -> None:
    """Raises ConfigInvalid."""
    names = [model.name for model in config.models]
    if not names:
        raise ConfigInvalid("models = [], must name at least one model")
    if len(set(names)) < len(names):
        raise ConfigInvalid(f"models = {names}, names must differ")
    if config.pool_bytes < 0 or 0 < config.pool_bytes < PAGE_BYTES:
        raise ConfigInvalid(f"pool_bytes = {config.pool_bytes}, must be 0 (default) or at least {PAGE_BYTES}")
    if not 0 <= config.pool_share <= 0.95:
        raise ConfigInvalid(f"pool_share = {config.pool_share}, must be 0 (default) to 0.95")
    if not 0 <= config.weights_budget_bytes <= MAX_BYTES:
        raise ConfigInvalid(
            f"weights_budget_bytes = {config.weights_budget_bytes}, must be 0 (default) to {MAX_BYTES}"
        )
    if not DEVICE.fullmatch(config.device):
        raise ConfigInvalid(f"device = {config.device!r}, must be cpu, cuda or cuda:GPU-UUID")
    if config.num_cpus < 0:
        raise ConfigInvalid(f"num_cpus = {config.num_cpus}, must be 0 (all) or more")
    if not MIN_HANG_TIMEOUT_S <= config.worker_hang_timeout_s <= MAX_HANG_TIMEOUT_S:
        raise ConfigInvalid(
            f"worker_hang_timeout_s = {config.worker_hang_timeout_s}, must be {MIN_HANG_TIMEOUT_S:.0f} to"
            f" {MAX_HANG_TIMEOUT_S:.0f}"
        )
    for model, num_spares in config.spares.items():
        if model not in names:
            raise ConfigInvalid(f"spares names {model!r}, known models: {', '.join(names)}")
        if not 0 <= num_spares <= MAX_SPARES:
            raise ConfigInvalid(f"spares[{model!r}] = {num_spares}, must be 0 to {MAX_SPARES}")
    try:
        for served in config.models:
            check_served(served)
    except ModelInvalid as exc:
        raise ConfigInvalid(str(exc)) from exc


def check_served(model: ServedModel) -> None:
    """Ranges, and what contradicts itself. Raises ModelInvalid with key, value and range."""
    what = f"model {model.name!r}: "
    _check_one_of(what, "precision", model.precision, get_args(Precision))
    _check_one_of(what, "kv_precision", model.kv_precision, get_args(KVPrecision))
    for key in SIZES:
        if not 0 <= getattr(model, key) <= MAX_BYTES:
            raise ModelInvalid(f"{what}{key} = {getattr(model, key)}, must be 0 to {MAX_BYTES}")
    for key in ("max_context_tokens", "max_output_tokens"):
        if not 0 <= getattr(model, key) <= MAX_TOKENS:
            raise ModelInvalid(f"{what}{key} = {getattr(model, key)}, must be 0 to {MAX_TOKENS}")
    if 0 < model.kv_ceiling_bytes < model.kv_floor_bytes:
        raise ModelInvalid(
            f"{what}kv_ceiling_bytes = {model.kv_ceiling_bytes}, must be 0 or at least"
            f" kv_floor_bytes = {model.kv_floor_bytes}"
        )


def check_floors(models: Sequence[ServedModel], pool_bytes: int) -> None:
    """Raises ModelInvalid when more is promised than there is."""
    promised = {model.name: model.kv_floor_bytes for model in models if model.kv_floor_bytes}
    if sum(promised.values()) > pool_bytes:
        listed = ", ".join(f"{name} {num_bytes}" for name, num_bytes in promised.items())
        raise ModelInvalid(
            f"kv_floor_bytes promise {sum(promised.values())} bytes ({listed}), the pool has {pool_bytes};"
            " lower a floor or raise pool_bytes"
        )


def _check_one_of(what: str, key: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise ModelInvalid(f"{what}{key} = {value!r}, must be one of {', '.join(known)}")


def available_memory_bytes(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Of the machine, or of this container where that is less."""
    available = int(psutil.virtual_memory().available)
    try:
        limit = int((cgroup / "memory.max").read_text())
        used = int((cgroup / "memory.current").read_text())
    except (OSError, ValueError):  # no cgroup v2, or "max"
        return available
    return max(0, min(available, limit - used))
