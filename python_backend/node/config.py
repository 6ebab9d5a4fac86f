"""What the launcher tells the node: `RUN_DIR/node.json`."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import psutil

from contracts.stack import ServedModel
from python_backend.node.errors import ConfigInvalid

MAX_SPARES = 64
DEFAULT_SPARES = 1
DEFAULT_POOL_CEILING_BYTES = 2 << 30
PAGE_BYTES = 4096


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Checked by `read_config`; nothing else reads the file."""

    run_dir: str
    """Folder of the sockets, mode 0700; made if it is not there."""
    models: list[ServedModel]
    pool_bytes: int = 0
    """Size of the KV pool, rounded down to whole pages. 0: a quarter of the free memory, at most 2 GiB."""
    num_cpus: int = 0
    """CPUs that the workers share. 0: all this process may run on."""
    spares: dict[str, int] = {}
    """Warm workers to keep at hand per model; a model that is not named keeps one."""

    def num_spares(self, model: str) -> int:
        return self.spares.get(model, DEFAULT_SPARES)

    def cpu_budget(self) -> int:
        return self.num_cpus or len(os.sched_getaffinity(0))

    def pool_size_bytes(self) -> int:
        """Whole pages; 0 when no model has a KV cache."""
        if all(model.kind != "generate" for model in self.models):
            return 0
        wanted = self.pool_bytes or min(DEFAULT_POOL_CEILING_BYTES, available_memory_bytes() // 4)
        return wanted // PAGE_BYTES * PAGE_BYTES


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
    if config.num_cpus < 0:
        raise ConfigInvalid(f"num_cpus = {config.num_cpus}, must be 0 (all) or more")
    for model, num_spares in config.spares.items():
        if model not in names:
            raise ConfigInvalid(f"spares names {model!r}, known models: {', '.join(names)}")
        if not 0 <= num_spares <= MAX_SPARES:
            raise ConfigInvalid(f"spares[{model!r}] = {num_spares}, must be 0 to {MAX_SPARES}")


def available_memory_bytes(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Of the machine, or of this container where that is less."""
    available = int(psutil.virtual_memory().available)
    try:
        limit = int((cgroup / "memory.max").read_text())
        used = int((cgroup / "memory.current").read_text())
    except (OSError, ValueError):  # no cgroup v2, or "max"
        return available
    return max(0, min(available, limit - used))
