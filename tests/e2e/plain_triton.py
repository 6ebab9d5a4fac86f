"""A Triton as others run it: explicit mode and nothing of ours, no node, no launcher, models of a few lines."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from tests.e2e.support import MODEL
from tidegate import stubs, triton_install
from tidegate.repository import compile_entry
from tidegate.testing import free_ports

CONFIG = """
backend: "python"
max_batch_size: 8
dynamic_batching {{ }}
input [ {{ name: "IN" data_type: TYPE_FP32 dims: [ 1 ] }} ]
output [ {{ name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] }} ]
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
"""

SELF_DESCRIBED = """
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [1]})
        config.add_output({"name": "OUT", "data_type": "TYPE_FP32", "dims": [1]})
        config.set_max_batch_size(8)
        config.set_dynamic_batching()
        return config
"""

SHARED = "/dev/shm/triton_python_backend_shm_region_"

DECOUPLED_CONFIG = """
backend: "python"
model_transaction_policy { decoupled: true }
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU count: 2 } ]
"""

DECOUPLED_MODEL = """
import threading
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            threading.Thread(target=self.answer, args=(request.get_response_sender(), value)).start()

    def answer(self, sender, value):
        for _ in range(int(value[0])):
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value)]))
            time.sleep(0.05)
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def write_plain_model(
    repository: Path,
    name: str,
    *,
    batch_s: float = 0.02,
    is_self_described: bool = False,
    on_initialize: str = "pass",
) -> Path:
    """`{count: 1}` in a group without a name. Returns the file where every `initialize` leaves a line."""
    init_log = repository.parent / f"{name}.initialized"
    version = repository / name / "1"
    version.mkdir(parents=True)
    model = MODEL.format(init_log=str(init_log), batch_s=batch_s, on_initialize=on_initialize)
    (version / "model.py").write_text(model + SELF_DESCRIBED * is_self_described)
    if not is_self_described:
        (repository / name / "config.pbtxt").write_text(CONFIG.format())
        compile_entry(repository / name)
    init_log.touch()
    return init_log


def write_decoupled_model(repository: Path, name: str) -> None:
    """Answers a request for N with N responses in N * 50 ms, from a thread of its own."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(DECOUPLED_CONFIG)
    (version / "model.py").write_text(DECOUPLED_MODEL)
    compile_entry(repository / name)


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

    def kill(self) -> None:
        """SIGKILL. What it leaves is taken away: its stubs, and the memory that it shared with them."""
        process = psutil.Process(self.process.pid)
        children = process.children(recursive=True)
        shared = [Path(part.path) for part in process.memory_maps() if part.path.startswith(SHARED)]
        self.process.kill()
        self.process.wait()
        kill_all(children)
        for path in shared:
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def plain_triton(
    repository: Path, *models: str, flags: tuple[str, ...] = (), ports: Sequence[int] | None = None
) -> Iterator[PlainTriton]:
    """Until the block ends. Only explicit mode and free ports are given; the rest is Triton's own default.

    `ports`: of HTTP, gRPC and metrics, for one that comes back where it was."""
    http, grpc, metrics = ports or free_ports(3)
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
        shutil.rmtree(folder, ignore_errors=True)


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
    kill_all(children)


def kill_all(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
