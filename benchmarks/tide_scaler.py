"""A scaler process on a stack whose own one was left out, with the tick and the window of a compressed day."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from contracts.stack import Stack
from contracts.triton_key import TRITON_KEY_NAME
from tidegate.testing import free_ports

READY_LINE = "tidegate-ready scaler"
START_TIMEOUT_S = 60.0


@contextlib.contextmanager
def scaling(stack: Stack, policy: str, *, tick_s: float, window_s: float) -> Iterator[str]:
    """Its address, until the block ends. Raises RuntimeError with its log when it does not start."""
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory(prefix="tg-scaler-") as name:
        folder = Path(name)
        (folder / "policy.yaml").write_text(policy)
        config = {
            "state_dir": str(folder / "state"),
            "policy_path": str(folder / "policy.yaml"),
            "port": port,
            "tick_s": tick_s,
            "window_s": window_s,
            "triton_grpc": stack.triton_grpc,
            "triton_key_file": str(Path(stack.run_dir) / TRITON_KEY_NAME),
            "triton_metrics": stack.triton_metrics,
            "triton_pid": stack.pids["tritonserver"],
            "node_socket": stack.node_socket,
            "run_dir": stack.run_dir,
        }
        (folder / "scaler.json").write_text(json.dumps(config))
        log_path = folder / "scaler.log"
        with log_path.open("wb") as log:
            command = [sys.executable, "-m", "scaler", "--config", str(folder / "scaler.json")]
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            _wait_ready(process, log_path)
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(60)


def _wait_ready(process: subprocess.Popen[bytes], log_path: Path) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while READY_LINE not in (text := log_path.read_text(errors="replace")).splitlines():
        if process.poll() is not None or time.monotonic() > deadline_s:
            raise RuntimeError(f"the scaler did not start:\n{text[-3000:]}")
        time.sleep(0.05)
