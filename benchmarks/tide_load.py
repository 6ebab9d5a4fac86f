"""Open-loop load on the emulated model (`tide_repository`): who was served when, by which worker, in what batch.

Open loop: a request goes out at its time whatever became of those before, and its waiting counts from that time. So
a server that falls behind hides nothing, and neither does a sender: how late it was is recorded. Each answer tells
when its batch began and ended on the emulated device, by the clock that this process reads too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2

from benchmarks.clients import TritonLoad
from benchmarks.statistics import median

MODEL = "tide"
REPOSITORY = Path(__file__).parent / "tide_repository"
CALL_TIMEOUT_S = 60.0
"""Far above any service time: Triton 2.51 can crash when a unary call's deadline comes near it."""


class AskFailed(RuntimeError):
    """A request that was not answered, or not with its own answer."""


@dataclass(frozen=True)
class Call:
    """One answered request. Times are seconds from the day's beginning."""

    due_s: float
    started_s: float
    """When its batch began on the device."""
    ended_s: float
    answered_s: float
    worker_pid: int
    rows: int
    """Of the batch that it was in."""

    @property
    def waited_s(self) -> float:
        return self.started_s - self.due_s


@dataclass
class Sent:
    """What became of one day."""

    calls: list[Call] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    late_s: list[float] = field(default_factory=list)
    """How long after its time each request went out."""
    began_s: float = 0.0
    """`time.monotonic()` of the day's beginning."""


async def send_all(address: str, due_s: Sequence[float]) -> Sent:
    """Every request at its time. Returns when all are answered."""
    sent = Sent(began_s=time.monotonic())
    async with TritonLoad(address) as load, asyncio.TaskGroup() as group:
        for number, due in enumerate(due_s):
            if (wait_s := sent.began_s + due - time.monotonic()) > 0:
                await asyncio.sleep(wait_s)
            sent.late_s.append(time.monotonic() - sent.began_s - due)
            group.create_task(_send_one(load.stub, float(number), due, sent))
    return sent


async def _send_one(stub: Any, number: float, due_s: float, sent: Sent) -> None:
    try:
        told = await ask(stub, number)
    except AskFailed as exc:
        sent.failures.append(str(exc))
        return
    answered_s = time.monotonic()
    sent.calls.append(
        Call(
            due_s=due_s,
            started_s=told["started_s"] - sent.began_s,
            ended_s=told["ended_s"] - sent.began_s,
            answered_s=answered_s - sent.began_s,
            worker_pid=int(told["worker_pid"]),
            rows=int(told["rows"]),
        )
    )


async def ask(stub: Any, number: float) -> dict[str, float]:
    """The outputs of one request by name. Raises AskFailed."""
    try:
        reply = await stub.ModelInfer(_request(number), timeout=CALL_TIMEOUT_S)
    except grpc.aio.AioRpcError as exc:
        raise AskFailed(f"{exc.code().name}: {exc.details()}") from exc
    told = _outputs(reply)
    if told["answer"] != 2 * number + 1:
        raise AskFailed(f"wrong answer: {told['answer']} to {number}")
    return told


def _request(number: float) -> Any:
    request = service_pb2.ModelInferRequest(model_name=MODEL)
    request.inputs.add(name="number", datatype="FP64", shape=[1, 1])
    request.raw_input_contents.append(np.float64(number).tobytes())
    return request


def _outputs(reply: Any) -> dict[str, float]:
    names = (output.name for output in reply.outputs)
    types = {"FP64": np.float64, "INT64": np.int64}
    values = (
        float(np.frombuffer(raw, types[output.datatype])[0])
        for output, raw in zip(reply.outputs, reply.raw_output_contents, strict=True)
    )
    return dict(zip(names, values, strict=True))


async def single_row_s(address: str, num_calls: int) -> float:
    """Seconds of a request alone on one instance, from call to answer: the inverse of its capacity at the smallest
    batch. The median, so that it is the same on a machine with other work. Raises AskFailed."""
    times_s = []
    async with TritonLoad(address) as load:
        for number in range(num_calls):
            began_s = time.monotonic()
            await ask(load.stub, float(number))
            times_s.append(time.monotonic() - began_s)
    return median(times_s)
