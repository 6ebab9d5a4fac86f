"""`python -m scaler` as tests run it: on a free port, its Triton anywhere, told to stop at the end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidegate.testing import free_ports

START_TIMEOUT_S = 30.0
READY_LINE = "tidegate-ready scaler"


@dataclass
class RunningScaler:
    process: subprocess.Popen[bytes]
    address: str
    log_path: Path

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def stop(self) -> int:
        """SIGTERM, then the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


@contextlib.contextmanager
def running_scaler(
    folder: Path, *, env: dict[str, str] | None = None, **settings: Any
) -> Iterator[RunningScaler]:
    """Its state and its log lie in `folder`."""
    (port,) = free_ports(1)
    process, log_path = start(folder, env=env, port=port, **settings)
    try:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while READY_LINE not in log_path.read_text().splitlines():
            assert process.poll() is None, log_path.read_text()
            assert time.monotonic() < deadline_s, log_path.read_text()
            time.sleep(0.02)
        yield RunningScaler(process, f"127.0.0.1:{port}", log_path)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(30)


def start(
    folder: Path, *, env: dict[str, str] | None = None, **settings: Any
) -> tuple[subprocess.Popen[bytes], Path]:
    # A Triton that does not answer: counts are unknown, so nothing is changed. Two scalers of one Triton refuse.
    (nobody,) = free_ports(1)
    config = {"state_dir": str(folder / "state"), "triton_grpc": f"127.0.0.1:{nobody}"} | settings
    config_path, log_path = folder / "scaler.json", folder / "scaler.log"
    config_path.write_text(json.dumps(config))
    with log_path.open("wb") as log:
        command = [sys.executable, "-m", "scaler", "--config", str(config_path)]
        environ = os.environ | (env or {})
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environ), log_path


def refused(folder: Path, **settings: Any) -> tuple[int, str]:
    """Exit code and output of one that does not start."""
    process, log_path = start(folder, **settings)
    return process.wait(START_TIMEOUT_S), log_path.read_text()
