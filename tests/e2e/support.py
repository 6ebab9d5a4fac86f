"""What the end-to-end tests share: a model of a few lines, a stack on free ports that serves it, load on it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import numpy as np
import openai
from tritonclient.grpc import service_pb2, service_pb2_grpc

from contracts.stack import Stack, read_stack
from scaler.acting.instance_update import InstanceLoad
from tidegate import stubs
from tidegate.testing import free_ports

STREAMING_CONFIG = """
name: "{name}"
backend: "python"
max_batch_size: 0
model_transaction_policy {{ decoupled: true }}
input [ {{ name: "IN" data_type: TYPE_FP32 dims: [ 1 ] }} ]
output [ {{ name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] }} ]
instance_group [ {{ name: "{name}-0" kind: KIND_CPU count: 1 host_policy: "{name}-0" }} ]
"""

ENDLESS_MODEL = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.senders = []

    def execute(self, requests):
        for request in requests:
            tensor = pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(request, "IN").as_numpy())
            sender = request.get_response_sender()
            sender.send(pb_utils.InferenceResponse([tensor]))
            self.senders.append(sender)
"""

UP = "import os, sys; from tidegate.settings import Settings; from tidegate.up import run_up; "
UP += "sys.exit(run_up(Settings.resolve(os.environ)))"

CONFIG = """
name: "{name}"
backend: "python"
max_batch_size: {max_batch_size}
dynamic_batching {{ max_queue_delay_microseconds: 1000 }}
input [ {{ name: "IN" data_type: TYPE_FP32 dims: [ 1 ] }} ]
output [ {{ name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] }} ]
instance_group [ {{ name: "{name}-0" kind: KIND_CPU count: 1 host_policy: "{name}-0" }} ]
"""

MODEL = """
import os
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        with open({init_log!r}, "a") as log:
            log.write(args["model_instance_name"] + " " + str(os.getpid()) + "\\n")
        {on_initialize}

    def execute(self, requests):
        time.sleep({batch_s})
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(request, "IN").as_numpy())]
            )
            for request in requests
        ]
"""


def write_model(
    repository: Path, name: str, *, batch_s: float = 0.0, max_batch_size: int = 8, on_initialize: str = "pass"
) -> Path:
    """An echo model that takes `batch_s` a batch. Returns the file where every `initialize` leaves a line."""
    init_log = repository.parent / f"{name}.initialized"
    version = repository / name / "1"
    version.mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(CONFIG.format(name=name, max_batch_size=max_batch_size))
    model = MODEL.format(init_log=str(init_log), batch_s=batch_s, on_initialize=on_initialize)
    (version / "model.py").write_text(model)
    init_log.touch()
    return init_log


def write_endless_model(repository: Path, name: str) -> None:
    """A decoupled model that answers once and never ends its streams."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(STREAMING_CONFIG.format(name=name))
    (version / "model.py").write_text(ENDLESS_MODEL)


@dataclass(frozen=True)
class Up:
    """A launcher that was started; `output` is all it has said so far."""

    process: subprocess.Popen[bytes]
    run_dir: Path
    log_path: Path
    ports: Mapping[str, int]

    @property
    def output(self) -> str:
        return self.log_path.read_text(errors="replace")

    def wait_ready(self, timeout_s: float = 60.0) -> Stack:
        deadline_s = time.monotonic() + timeout_s
        while (stack := read_stack(self.run_dir)) is None:
            assert self.process.poll() is None, f"ended with {self.process.poll()}:\n{self.output}"
            assert time.monotonic() < deadline_s, f"not ready in {timeout_s} s:\n{self.output}"
            time.sleep(0.02)
        return stack

    def stubs(self) -> list[stubs.Stub]:
        """Of the tritonserver that this launcher started."""
        stack = read_stack(self.run_dir)
        return stubs.children(stack.pids["tritonserver"])[0] if stack else []


@contextlib.contextmanager
def launched(
    repository: Path,
    *models: str,
    ports: Mapping[str, int] | None = None,
    stop_timeout_s: float = 30,
    **settings: str,
) -> Iterator[Up]:
    """`tidegate up` on a repository of the test's own, until the block ends; without node, and without gateway and
    scaler unless `settings` say so."""
    # Its folder lies right in the temporary one: paths of Unix sockets are short.
    run_dir = Path(tempfile.mkdtemp(prefix="tg-"))
    names = ("triton_http_port", "triton_grpc_port", "triton_metrics_port")
    ports = ports or dict(zip(names, free_ports(3), strict=True))
    env = {
        **os.environ,
        "TIDEGATE_RUN_DIR": str(run_dir / "run"),
        "TIDEGATE_REPOSITORY": str(repository),
        "TIDEGATE_MODELS": ",".join(models),
        "TIDEGATE_STOP_TIMEOUT_S": str(stop_timeout_s),
        "TIDEGATE_WITH_NODE": "0",
        "TIDEGATE_WITH_GATEWAY": "0",
        "TIDEGATE_WITH_SCALER": "0",
        "TIDEGATE_SCALER_METRICS_PORT": "0",
        "TIDEGATE_NODE_METRICS_PORT": "0",
        **{f"TIDEGATE_{name.upper()}": str(value) for name, value in {**ports, **settings}.items()},
    }
    log_path = run_dir / "up.log"
    with log_path.open("wb") as log:
        command = [sys.executable, "-c", UP]
        process = subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield Up(process, run_dir / "run", log_path, ports)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(60)
        shutil.rmtree(run_dir, ignore_errors=True)


@dataclass
class StubNode:
    """The node's part in scaling for models without workers: what the process table says of the stubs."""

    triton_pid: int
    drained: list[str] = field(default_factory=list)

    async def loads(self, model: str) -> list[InstanceLoad]:
        living, _ = stubs.children(self.triton_pid)
        return [
            InstanceLoad(
                instance=stub.instance,
                stub_pid=stub.pid,
                in_flight=0,
                landed=0,
                attached_unix_ms=int(stub.created_unix_s * 1000),
                is_draining=stub.instance in self.drained,
            )
            for stub in living
            if stub.model == model
        ]

    async def drain(self, model: str, instance: str) -> InstanceLoad:
        self.drained.append(instance)
        return next(load for load in await self.loads(model) if load.instance == instance)

    async def resume(self, model: str, instance: str) -> None:
        self.drained.remove(instance)

    async def prepare_spares(self, model: str, num_spares: int, timeout_s: float) -> bool:
        return True


Ask = Callable[[], Awaitable[None]]
"""One request. Raises AssertionError when its answer is wrong, and what its client raises."""


@dataclass
class Outcomes:
    """What a load has seen."""

    num_ok: int = 0
    failures: list[str] = field(default_factory=list)


def echo_request(model: str, value: float, shape: list[int]) -> service_pb2.ModelInferRequest:
    request = service_pb2.ModelInferRequest(model_name=model)
    request.inputs.add(name="IN", datatype="FP32", shape=shape)
    request.raw_input_contents.append(np.float32(value).tobytes())
    return request


async def echo(stub: service_pb2_grpc.GRPCInferenceServiceStub, model: str, value: float) -> float:
    reply = await stub.ModelInfer(echo_request(model, value, [1, 1]))
    return float(np.frombuffer(reply.raw_output_contents[0], np.float32)[0])


@contextlib.asynccontextmanager
async def echo_stub(address: str) -> AsyncIterator[service_pb2_grpc.GRPCInferenceServiceStub]:
    async with grpc.aio.insecure_channel(address) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


@contextlib.asynccontextmanager
async def closed_loop_clients(address: str, model: str, num_clients: int) -> AsyncIterator[Outcomes]:
    """Each sends its next request when the last is answered, until the block ends and all are answered."""

    def asks(stub: service_pb2_grpc.GRPCInferenceServiceStub, number: int) -> Ask:
        async def ask() -> None:
            assert await echo(stub, model, number) == number

        return ask

    async with (
        echo_stub(address) as stub,
        closed_loop(asks(stub, number) for number in range(num_clients)) as outcomes,
    ):
        yield outcomes


@contextlib.asynccontextmanager
async def closed_loop(asks: Iterable[Ask]) -> AsyncIterator[Outcomes]:
    """Each is asked again when it was answered, until the block ends and all are answered."""
    outcomes, done = Outcomes(), asyncio.Event()

    async def client(ask: Ask) -> None:
        while not done.is_set():
            try:
                await ask()
                outcomes.num_ok += 1
            except (grpc.aio.AioRpcError, openai.OpenAIError, AssertionError) as exc:
                outcomes.failures.append(str(exc))
                await asyncio.sleep(0.1)

    async with asyncio.TaskGroup() as group:
        for ask in asks:
            group.create_task(client(ask))
        try:
            yield outcomes
        finally:
            done.set()
