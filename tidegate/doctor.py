"""`tidegate doctor`: can this machine serve, and if not, what mends it. Looks only; changes nothing.

Each check is a judgement (pure, tested alone) over something measured; `diagnose` measures and judges.
"""

from __future__ import annotations

import os
import resource
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from contracts.stack import Stack
from tidegate.console import size_text
from tidegate.settings import Settings

if TYPE_CHECKING:
    from tidegate.models.registry import Registry

State = Literal["ok", "warn", "fail"]

MIB = 1 << 20
SHM = Path("/dev/shm")  # noqa: S108  # Triton's, not a temporary file of ours
SHM_PER_INSTANCE_BYTES = MIB
"""Triton's --shm-default-byte-size: what an instance of the Python backend takes before its first request."""
SHM_COMFORT_BYTES = 64 * MIB
"""A container's default; requests with long texts grow an instance's share."""
OPEN_FILES_MIN = 256
OPEN_FILES_COMFORT = 4096
"""Each client connection takes one in the gateway and one in Triton."""
SMALL_MEMORY_SHARE = 0.8


@dataclass(frozen=True)
class Check:
    """One row. `way_out`: what to do about it, empty when nothing is to do."""

    name: str
    state: State
    text: str
    way_out: str = ""


def is_healthy(checks: list[Check]) -> bool:
    return all(check.state != "fail" for check in checks)


def diagnose(settings: Settings, environ: Mapping[str, str], stack: Stack | None) -> list[Check]:
    """`stack`: the one that runs, or None."""
    weights_bytes, models = check_models(settings)
    return [
        check_python(),
        check_triton(environ),
        check_shm(SHM, num_instances=len(settings.models)),
        check_memory(
            _available_memory_bytes(), settings.pool_bytes, weights_bytes, is_running=stack is not None
        ),
        check_open_files(resource.getrlimit(resource.RLIMIT_NOFILE)),
        *models,
        *check_ports(settings, stack),
        check_stack(settings.run_dir, stack),
    ]


def check_python() -> Check:
    import importlib.metadata

    version = f"{sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}"
    return Check("python", "ok", f"{version} in {sys.prefix}, numpy {importlib.metadata.version('numpy')}")


def check_triton(environ: Mapping[str, str]) -> Check:
    from tidegate import triton_install
    from tidegate.launch_errors import LaunchError

    try:
        install = triton_install.find(environ)
        triton_install.check_usable(install)
    except LaunchError as exc:
        text, _, way_out = str(exc).rpartition("; ")
        return Check("triton", "fail", text, way_out)
    return Check("triton", "ok", f"{install.binary}{' (embedded, CPU only)' if install.is_embedded else ''}")


def check_shm(path: Path, *, num_instances: int) -> Check:
    try:
        usage = shutil.disk_usage(path)
    except OSError as exc:
        return Check(
            "shared memory", "fail", f"{path}: {exc.strerror}", "mount a tmpfs there; Triton needs it"
        )
    return judge_shm(usage.total, usage.free, num_instances)


def judge_shm(total_bytes: int, free_bytes: int, num_instances: int) -> Check:
    text = f"{SHM} has {size_text(free_bytes)} of {size_text(total_bytes)} free"
    needed = num_instances * SHM_PER_INSTANCE_BYTES
    why = f"each Triton instance takes {size_text(SHM_PER_INSTANCE_BYTES)} there, more for long texts"
    way_out = "docker run --shm-size=1g, or mount -o remount,size=1g /dev/shm"
    if free_bytes < needed:
        return Check(
            "shared memory", "fail", f"{text}, {num_instances} instances need {size_text(needed)}", way_out
        )
    if free_bytes < max(needed, SHM_COMFORT_BYTES):
        return Check("shared memory", "warn", f"{text}; {why}", way_out)
    return Check("shared memory", "ok", text)


def _available_memory_bytes() -> int:
    from python_backend.node.config import available_memory_bytes

    return available_memory_bytes()


def check_memory(available_bytes: int, pool_bytes: int, weights_bytes: int, *, is_running: bool) -> Check:
    """`pool_bytes` 0: the node's own choice, which always fits."""
    from python_backend.node.config import DEFAULT_POOL_CEILING_BYTES

    text = f"{size_text(available_bytes)} available"
    if is_running:
        return Check("memory", "ok", f"{text} beside the stack that runs")
    pool = pool_bytes or min(DEFAULT_POOL_CEILING_BYTES, available_bytes // 4)
    needed = pool + weights_bytes
    text = f"{text}; pool {size_text(pool)} + weights {size_text(weights_bytes)}"
    if needed > available_bytes:
        way_out = (
            f"set --pool-bytes below {size_text(max(0, available_bytes - weights_bytes))}, or free memory"
        )
        return Check("memory", "fail", f"{text} do not fit", way_out)
    if needed > SMALL_MEMORY_SHARE * available_bytes:
        return Check(
            "memory",
            "warn",
            f"{text} leave {size_text(available_bytes - needed)} for Triton and the workers",
            "set a smaller --pool-bytes; each worker takes 50 to 150 MiB of its own",
        )
    return Check("memory", "ok", text)


def check_open_files(limits: tuple[int, int]) -> Check:
    """`limits`: soft and hard, as getrlimit gives them."""
    soft, hard = ("unlimited" if limit == resource.RLIM_INFINITY else str(limit) for limit in limits)
    text = f"{soft} (hard limit {hard})"
    if limits[0] == resource.RLIM_INFINITY or limits[0] >= OPEN_FILES_COMFORT:
        return Check("open files", "ok", text)
    reachable = "" if limits[1] == resource.RLIM_INFINITY or limits[1] >= OPEN_FILES_COMFORT else " (as root)"
    way_out = f"ulimit -n 65536{reachable}"
    if limits[0] < OPEN_FILES_MIN:
        return Check("open files", "fail", f"{text}; the stack alone needs {OPEN_FILES_MIN}", way_out)
    return Check("open files", "warn", f"{text}; each client takes two", way_out)


def check_models(settings: Settings) -> tuple[int, list[Check]]:
    """Returns the bytes of all weights too; files are looked at, not hashed."""
    from tidegate.models.registry import Registry

    registry = Registry.at_home()
    weights_bytes, checks = 0, []
    for served in settings.models:
        try:
            name = _weights_of(settings, served)
        except Exception as exc:  # a foreign repository may hold anything
            checks.append(Check(f"model {served}", "fail", str(exc), "mend its config.pbtxt"))
            continue
        if name is None:
            checks.append(Check(f"model {served}", "ok", "needs no weights of ours"))
            continue
        num_bytes, check = _check_model(registry, served, name)
        weights_bytes += num_bytes
        checks.append(check)
    return weights_bytes, checks


def _weights_of(settings: Settings, served: str) -> str | None:
    """The registered model behind a served one; None: Triton's alone."""
    from tidegate import repository

    source = settings.repository or repository.shipped()
    if not (source / served / "config.pbtxt").is_file():
        return served
    config = repository.read_config(source / served)
    return config.parameters["weights"].string_value if "weights" in config.parameters else None


def _check_model(registry: Registry, served: str, name: str) -> tuple[int, Check]:
    from tidegate.models import folder
    from tidegate.models.errors import ModelError

    row = f"model {served}"
    try:
        manifest = registry.find(name)
        if manifest is None:
            way_out = "tidegate models fetch" if served != name else f"tidegate models add {name} PATH"
            return 0, Check(row, "fail", f"{name} is not registered under {registry.root}", way_out)
        found = folder.inspect(Path(manifest.path))
    except ModelError as exc:
        return 0, Check(row, "fail", str(exc), f"tidegate models fetch --force, or add {name} again")
    if gone := set(manifest.sha256) - {file.name for file in found.files}:
        return 0, Check(row, "fail", f"{name}: {', '.join(sorted(gone))} gone", "tidegate models fetch")
    return 4 * found.num_parameters, Check(
        row, "ok", f"{name} ({found.architecture}, {size_text(found.num_bytes)})"
    )


def check_ports(settings: Settings, stack: Stack | None) -> list[Check]:
    from tidegate.launch_errors import LaunchError
    from tidegate.ports import holder_of, is_free

    ours = set() if stack is None else {_port_of(address) for address in _addresses(stack)}
    free, checks = [], []
    for name, port in settings.ports.items():
        option = "--" + name.replace("_", "-")
        try:
            if port in ours:
                checks.append(Check(f"port {port}", "ok", "held by the stack that runs"))
            elif is_free(settings.host, port):
                free.append(str(port))
            else:
                text = f"taken by {holder_of(port)}"
                checks.append(
                    Check(f"port {port}", "fail", text, f"stop it, or choose another with {option}")
                )
        except LaunchError as exc:
            checks.append(Check(f"port {port}", "fail", str(exc), f"choose another with --host or {option}"))
    if free:
        checks.insert(0, Check("ports", "ok", f"{', '.join(free)} free on {settings.host}"))
    return checks


def _addresses(stack: Stack) -> list[str]:
    return [
        stack.triton_http,
        stack.triton_grpc,
        stack.triton_metrics,
        stack.gateway_http,
        stack.gateway_grpc,
        stack.scaler_grpc,
        stack.scaler_metrics,
        stack.node_metrics,
    ]


def _port_of(address: str) -> int:
    port = address.rpartition(":")[2]
    return int(port) if port.isdecimal() else 0


def check_stack(
    run_dir: Path, stack: Stack | None, process_exists: Callable[[int], bool] | None = None
) -> Check:
    if stack is None:
        usable = run_dir if run_dir.exists() else run_dir.parent
        if not os.access(usable, os.W_OK):
            return Check("stack", "fail", f"{usable} can't be written", "name another folder with --run-dir")
        return Check("stack", "ok", f"none runs in {run_dir}; `tidegate up` starts one")
    exists = process_exists or is_alive
    if gone := [f"{name} (pid {pid})" for name, pid in stack.pids.items() if not exists(pid)]:
        return Check(
            "stack", "fail", f"{', '.join(gone)} is gone", f"stop pid {stack.pid}, then `tidegate up`"
        )
    return Check(
        "stack", "ok", f"runs in {run_dir} (pid {stack.pid}) with {', '.join(m.name for m in stack.models)}"
    )


def is_alive(pid: int) -> bool:
    """A zombie is not: it waits for its parent to notice."""
    from tidegate.status import process_state

    return process_state("", pid).is_alive
