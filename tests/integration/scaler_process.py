"""`python -m scaler` as tests run it: on a free port, its Triton anywhere, told to stop at the end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidegate.testing import free_ports

TIMEOUT_S = 60.0
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
        return self.process.wait(TIMEOUT_S)


@contextlib.contextmanager
def running_scaler(
    folder: Path, *, env: dict[str, str] | None = None, **settings: Any
) -> Iterator[RunningScaler]:
    """Ready when it is given. Its state and its log lie in `folder`."""
    (port,) = free_ports(1)
    with started(folder, env=env, port=port, **settings) as (process, log_path):
        wait_for(lambda: READY_LINE in log_path.read_text().splitlines() or process.poll() is not None)
        assert process.poll() is None, log_path.read_text()
        yield RunningScaler(process, f"127.0.0.1:{port}", log_path)


@contextlib.contextmanager
def started(
    folder: Path, *, env: dict[str, str] | None = None, **settings: Any
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Whether or not it gets ready. Ended with the block."""
    # A Triton that does not answer: counts are unknown, so nothing is changed. Two scalers of one Triton refuse.
    (nobody,) = free_ports(1)
    config = {"state_dir": str(folder / "state"), "triton_grpc": f"127.0.0.1:{nobody}"} | settings
    config_path, log_path = folder / "scaler.json", folder / "scaler.log"
    config_path.write_text(json.dumps(config))
    with log_path.open("wb") as log:
        command = [sys.executable, "-m", "scaler", "--config", str(config_path)]
        environ = os.environ | (env or {})
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environ)
    try:
        yield process, log_path
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(TIMEOUT_S)


def refused(folder: Path, **settings: Any) -> tuple[int, str]:
    """Exit code and output of one that does not start."""
    with started(folder, **settings) as (process, log_path):
        return process.wait(TIMEOUT_S), log_path.read_text()


def wait_for(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
