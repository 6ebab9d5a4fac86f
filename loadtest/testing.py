"""For tests and benches: the mock server as a process, and work that needs no plan."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from loadtest.call import Call, Protocol, Tensor
from loadtest.generating.fleet import Task
from loadtest.generating.messages import Target
from loadtest.generating.work import Hold
from loadtest.mock_server import ID_HEADER, READY, Script

MAKER = "loadtest.testing:plain_work"


@dataclass(frozen=True, slots=True)
class RunningMock:
    http: str
    """Its URL."""
    grpc: str
    """host:port."""
    popen: subprocess.Popen[str]

    def target(self, protocol: Protocol) -> Target:
        """Its one door for that: a child does not load what it will not need."""
        return Target(http=self.http) if protocol.startswith("openai") else Target(grpc=self.grpc)

    def follow(self, script: Script) -> None:
        """From now on, as if it had just started."""
        self._ask("/script", msgspec.json.encode(script))

    def stamps_s(self) -> dict[str, list[float]]:
        """ "INDEX.TURN" of a plain call -> when each chunk of its answer left the server, CLOCK_MONOTONIC."""
        return msgspec.json.decode(self._ask("/stamps"), type=dict[str, list[float]])

    def _ask(self, path: str, body: bytes | None = None) -> bytes:
        with urllib.request.urlopen(self.http + path, body, timeout=10) as reply:  # noqa: S310 - its own address
            answer: bytes = reply.read()
        return answer


@contextlib.contextmanager
def running_mock(script: Script) -> Iterator[RunningMock]:
    """Until the block ends. Raises RuntimeError when it does not start."""
    command = [sys.executable, "-m", "loadtest.mock_server", msgspec.json.encode(script).decode()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as popen:
        try:
            words = popen.stdout.readline().split() if popen.stdout else []
            if words[:1] != [READY]:
                raise RuntimeError(f"the mock server did not start: {' '.join(words)!r}")
            yield RunningMock(f"http://127.0.0.1:{words[1]}", f"127.0.0.1:{words[2]}", popen)
        finally:
            popen.kill()


class PlainArgument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Evenly or randomly spaced calls of one protocol; or a hold, when `slots` is not 0."""

    protocol: Protocol
    rate_per_s: float = 20.0
    duration_s: float = 1.0
    poisson_seed: int | None = None
    slots: int = 0
    num_turns: int = 1
    think_s: float = 0.0
    dies_at_index: int = -1
    """The process that makes this call exits: a crash of the generator."""
    service: str = "mock"
    tensor_values: int = 2
    """Of the one input IN, FP32, of `grpc_tensors`."""
    max_tokens: int = 16


@dataclass(frozen=True, slots=True)
class PlainWork:
    argument: PlainArgument
    t_intended_s: npt.NDArray[np.float64]
    hold: Hold | None

    @property
    def duration_s(self) -> float:
        return self.argument.duration_s

    def call(self, index: int) -> Call:
        turns = [self._turn(index, turn) for turn in range(self.argument.num_turns)]
        first = self._turn(index, 0, later_turns=tuple(turns[1:]))
        return first

    def _turn(self, index: int, turn: int, later_turns: tuple[Call, ...] = ()) -> Call:
        at_s = float(self.t_intended_s[index]) if self.hold is None and turn == 0 else 0.0
        protocol, count = self.argument.protocol, self.argument.tensor_values
        return Call(
            index=index,
            t_intended_s=at_s,
            user="plain",
            protocol=protocol,
            service=self.argument.service,
            messages=({"role": "user", "content": f"turn {turn} of {index}"},),
            texts=(f"text {index}",),
            tensors=(Tensor("IN", "FP32", (count,), (1.0,) * count),) if protocol == "grpc_tensors" else (),
            max_tokens=self.argument.max_tokens,
            session=f"s{index}" if self.argument.num_turns > 1 else "",
            later_turns=later_turns,
            think_s=self.argument.think_s if turn else 0.0,
            headers=((ID_HEADER, f"{index}.{turn}"),),
        )


class _Dying(PlainWork):
    """Only in a child: its parent makes the same calls to fill in what the dead did not tell."""

    def call(self, index: int) -> Call:
        if index == self.argument.dies_at_index:
            raise SystemExit(7)
        return super().call(index)


def plain_work(argument: Any) -> PlainWork:
    """`load_work`'s maker, in the children."""
    return _work(msgspec.convert(argument, PlainArgument), _Dying)


def _work(argument: PlainArgument, kind: type[PlainWork]) -> PlainWork:
    none: npt.NDArray[np.float64] = np.empty(0)
    if argument.slots:
        return kind(argument, none, Hold([0.0] * argument.slots))
    count = round(argument.rate_per_s * argument.duration_s)
    times_s = np.arange(count) / argument.rate_per_s
    if argument.poisson_seed is not None:
        times_s = np.sort(np.random.default_rng(argument.poisson_seed).uniform(0, argument.duration_s, count))
    return kind(argument, times_s, None)


def plain_task(
    argument: PlainArgument,
    target: Target | RunningMock,
    *,
    num_processes: int = 1,
    drain_s: float = 2.0,
    timeout_s: float = 30.0,
) -> Task:
    work = _work(argument, PlainWork)
    if isinstance(target, RunningMock):
        target = target.target(argument.protocol)
    encoded = msgspec.json.encode(argument)
    return Task(work, MAKER, encoded, target, num_processes, drain_s, timeout_s)
