"""What the checks run on: the GPU with its driver, or the CPU with a fake one; and how they start processes."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

IS_FAKE = os.environ.get("TIDEGATE_FAKE_GPU") == "1"
MIB = 1 << 20


class Skip(Exception):
    """This check cannot run here; the text says why."""


def need(*modules: str) -> None:
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise Skip(f"not installed here: {', '.join(missing)}")


def make_driver() -> Any:
    if IS_FAKE:
        from python_backend.cuda_testing import FakeDriver

        return FakeDriver(memory_bytes=1 << 30)
    from python_backend.cuda_driver import CudaDriver

    return CudaDriver()


def first_gpu(driver: Any) -> Any:
    from python_backend.cuda import find_gpu

    return find_gpu(driver, "cuda")


def start_gpu() -> Any:
    """A GpuContext of this process."""
    import torch

    from python_backend.worker.cuda_memory import GpuContext, start_cuda

    driver = make_driver()
    if not IS_FAKE:
        return start_cuda(f"cuda:{first_gpu(driver).uuid}")
    return GpuContext(torch.device("cpu", 0), driver, view_on_cpu)


def view_on_cpu(address: int, num_bytes: int, _device: Any) -> Any:
    import torch

    return torch.frombuffer((ctypes.c_ubyte * num_bytes).from_address(address), dtype=torch.uint8)


def synchronize(gpu: Any) -> Callable[[], None]:
    return (lambda: None) if IS_FAKE else gpu.synchronize


def new_piece(num_bytes: int, *, is_legacy: bool = False) -> Any:
    """Made as the node makes it: without a context, unless it is a legacy one."""
    from python_backend.cuda_sharing import SharedPiece

    driver = make_driver()
    return SharedPiece(driver, first_gpu(driver), num_bytes, is_legacy)


def start_child(name: str, arguments: dict[str, Any], fds: Sequence[int] = ()) -> subprocess.Popen[str]:
    """`child_NAME(**arguments)` of check_bodies in a fresh interpreter that inherits `fds`."""
    bodies = str(Path(__file__).with_name("check_bodies.py"))
    return subprocess.Popen(
        [sys.executable, bodies, "--child", name, json.dumps(arguments)],
        pass_fds=tuple(fds),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def answer(child: subprocess.Popen[str]) -> Any:
    """The next line that it prints, as JSON."""
    assert child.stdout is not None
    while line := child.stdout.readline():
        if line.startswith("{"):
            return json.loads(line)
    raise AssertionError(f"a child process ended with status {child.wait()} before it answered")


def finish(child: subprocess.Popen[str]) -> int:
    """Let it go on to its end."""
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.close()
    child.stdout.close()
    return child.wait(60)


def say(**figures: Any) -> None:
    print(json.dumps(figures), flush=True)


def wait_for_parent() -> None:
    sys.stdin.read()


def median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]
