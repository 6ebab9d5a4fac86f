"""A whole stack for tests and benchmarks: `tidegate up` as a process, on free ports, in its own run directory."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from contracts.stack import Stack, read_stack


class StackDidNotStart(RuntimeError):
    """`tidegate up` ended, or was not ready in time; the text holds the end of its output."""


@dataclass(frozen=True)
class RunningStack:
    """A stack that is ready, and the process that holds it up."""

    stack: Stack
    process: subprocess.Popen[bytes]
    log_path: Path

    @property
    def run_dir(self) -> Path:
        return Path(self.stack.run_dir)

    def stop(self, timeout_s: float = 60.0) -> int:
        """SIGTERM, then the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago, all different."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in sockets]


@contextlib.contextmanager
def running_stack(*options: str, timeout_s: float = 180.0) -> Iterator[RunningStack]:
    """`tidegate up OPTIONS` until the block ends. Raises StackDidNotStart."""
    # Unix socket paths are short (108 bytes), so the run directory lies in the temporary folder itself.
    run_dir = Path(tempfile.mkdtemp(prefix="tg-"))
    log_path = run_dir / "up.log"
    http, grpc, metrics, gateway, gateway_grpc, scaler, scaler_metrics, node_metrics = free_ports(8)
    command = [
        *(sys.executable, "-m", "tidegate", "up", "--run-dir", str(run_dir)),
        *("--triton-http-port", str(http), "--triton-grpc-port", str(grpc)),
        *("--triton-metrics-port", str(metrics), "--gateway-port", str(gateway)),
        *("--gateway-grpc-port", str(gateway_grpc), "--scaler-port", str(scaler)),
        *("--scaler-metrics-port", str(scaler_metrics), "--node-metrics-port", str(node_metrics)),
        *options,
    ]
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=os.environ | {"COLUMNS": "200"}
        )
    try:
        yield RunningStack(_wait_ready(process, run_dir, log_path, timeout_s), process, log_path)
    finally:
        _end(process)
        shutil.rmtree(run_dir, ignore_errors=True)


def _wait_ready(process: subprocess.Popen[bytes], run_dir: Path, log_path: Path, timeout_s: float) -> Stack:
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        if (stack := read_stack(run_dir)) is not None:
            return stack
        if process.poll() is not None:
            break
        time.sleep(0.05)
    tail = log_path.read_text(errors="replace")[-3000:]
    raise StackDidNotStart(
        f"exit code {process.poll()} (None: still starting after {timeout_s:.0f} s)\n{tail}"
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
