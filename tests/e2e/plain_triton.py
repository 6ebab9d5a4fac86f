"""A Triton as others run it: explicit mode and nothing of ours, no node, no launcher, models of a few lines."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from tidegate import stubs, triton_install
from tidegate.testing import free_ports

CONFIG = """
backend: "python"
max_batch_size: 8
input [ {{ name: "IN" data_type: TYPE_FP32 dims: [ 1 ] }} ]
output [ {{ name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] }} ]
instance_group [ {{ kind: KIND_CPU count: {count} }} ]
"""

SELF_DESCRIBED = """
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [1]})
        config.add_output({"name": "OUT", "data_type": "TYPE_FP32", "dims": [1]})
        config.set_max_batch_size(8)
        return config
"""


@dataclass(frozen=True)
class PlainTriton:
    """A server that answers."""

    grpc: str
    metrics: str
    process: subprocess.Popen[bytes]
    log_path: Path

    def stub_pids(self, model: str) -> set[int]:
        living, _ = stubs.children(self.process.pid)
        return {stub.pid for stub in living if stub.model == model}


@contextlib.contextmanager
def plain_triton(repository: Path, *models: str, flags: tuple[str, ...] = ()) -> Iterator[PlainTriton]:
    """Until the block ends. Only explicit mode and free ports are given; the rest is Triton's own default."""
    http, grpc, metrics = free_ports(3)
    install = triton_install.find(os.environ)
    folder = Path(tempfile.mkdtemp(prefix="tg-plain-"))
    backends = triton_install.prepare_backends(install, folder / "backends")
    command = [
        str(install.binary),
        f"--model-repository={repository}",
        *([f"--backend-directory={backends}"] if backends else []),
        "--model-control-mode=explicit",
        *(f"--load-model={model}" for model in models),
        *("--http-address=127.0.0.1", f"--http-port={http}"),
        *("--grpc-address=127.0.0.1", f"--grpc-port={grpc}"),
        *("--metrics-address=127.0.0.1", f"--metrics-port={metrics}"),
        "--exit-timeout-secs=3",
        *flags,
    ]
    log_path = folder / "triton.log"
    env = triton_install.server_environ(install, os.environ, folder / "none")
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT)
    try:
        wait_live(f"http://127.0.0.1:{http}/v2/health/ready", process, log_path)
        yield PlainTriton(f"127.0.0.1:{grpc}", f"http://127.0.0.1:{metrics}/metrics", process, log_path)
    finally:
        end(process)


def wait_live(url: str, process: subprocess.Popen[bytes], log_path: Path, timeout_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    with httpx.Client(timeout=2, trust_env=False) as client:
        while True:
            assert process.poll() is None, log_path.read_text(errors="replace")[-4000:]
            assert time.monotonic() < deadline_s, log_path.read_text(errors="replace")[-4000:]
            with contextlib.suppress(httpx.TransportError):
                if client.get(url).status_code == 200:
                    return
            time.sleep(0.05)


def end(process: subprocess.Popen[bytes]) -> None:
    """Its stubs too: a server that is killed leaves them."""
    children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    process.terminate()
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
