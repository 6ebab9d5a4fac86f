"""Workers are killed at random moments under load: a real node, real torch, and the bridge as Triton drives it.

Nothing leaks, every request gets exactly one final response (the stand-in for Triton's sender refuses a second one,
as Triton does by crashing), and a request fails only if a worker of its own instance was killed while it was open.
"""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest

from python_backend.bridge import testing

testing.install()

from contracts import node_pb2, node_pb2_grpc  # noqa: E402 (after the stand-in is there)
from python_backend.bridge.attachment import NODE_SOCKET_VARIABLE  # noqa: E402
from python_backend.bridge.generate import GenerateModel  # noqa: E402
from python_backend.bridge.testing import FakeRequest, FakeSender, InferenceResponse  # noqa: E402
from tests.integration.test_node_models import Node, running_node, until  # noqa: E402
from tests.integration.test_prefix_sharing import BLOCK_BYTES, VOCABULARY, write_model  # noqa: E402

pytestmark = pytest.mark.integration

NUM_INSTANCES = 4
CAP = 6
POOL_BLOCKS = 256
SYSTEM_PROMPT = [f"w{token}" for token in range(2, 40)]
"""Shared by half of the requests, so that published blocks are read while their publishers die."""
WORKER_DIED = "unavailable: the worker of this instance "
NO_WORKER = "unavailable: this instance has no worker"
ENDS_WITHIN_S = 60.0
FEW_FDS = 5
"""Of the node, for control connections that come and go."""


class Ask(FakeRequest):
    """One request of the load and all that became of it."""

    def __init__(self, draw: random.Random, instance: int) -> None:
        self.instance = instance
        self.num_tokens = draw.randrange(4, 48)
        words = [f"w{draw.randrange(2, VOCABULARY)}" for _ in range(draw.randrange(1, 60))]
        prompt = " ".join(SYSTEM_PROMPT + words if draw.random() < 0.5 else words)
        sampling = {"max_tokens": self.num_tokens, "ignore_eos": True, "temperature": 0}
        super().__init__(
            {
                "text_input": prompt.encode(),
                "stream": True,
                "return_num_output_tokens": True,
                "sampling_parameters": json.dumps(sampling).encode(),
            }
        )
        self.sender = Recorder()
        self.asked_s = time.monotonic()

    def get_response_sender(self) -> Recorder:
        return self.sender

    @property
    def error(self) -> str:
        last = self.sender.responses[-1]
        return last.error.text if last is not None and last.error is not None else ""

    @property
    def num_tokens_got(self) -> int:
        return sum(int(r.outputs()["num_output_tokens"]) for r in self.sender.responses if r and not r.error)


class Recorder(FakeSender):
    ended_s = 0.0

    def send(self, response: InferenceResponse | None, flags: int = 0) -> None:
        super().send(response, flags)
        if flags:
            self.ended_s = time.monotonic()


class Load:
    """Instances as Triton has them: one thread each, which calls `execute` again when it returns."""

    def __init__(self, seed: int) -> None:
        self.asked: list[Ask] = []
        self._stopping = threading.Event()
        self._models = [GenerateModel() for _ in range(NUM_INSTANCES)]
        for number, model in enumerate(self._models):
            model.initialize(
                {
                    "model_name": "chat",
                    "model_instance_name": f"chat-{number}_0",
                    "model_config": json.dumps({"parameters": {"max_in_flight": {"string_value": str(CAP)}}}),
                }
            )
        self._threads = [
            threading.Thread(target=self._drive, args=(number, random.Random(seed + number)))
            for number in range(NUM_INSTANCES)
        ]
        for thread in self._threads:
            thread.start()

    def _drive(self, number: int, draw: random.Random) -> None:
        while not self._stopping.is_set():
            ask = Ask(draw, number)
            self.asked.append(ask)
            self._models[number].execute([ask])

    def stop(self) -> None:
        """On return every request has ended."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(ENDS_WITHIN_S)
        until(lambda: all(ask.sender.num_finals for ask in self.asked), ENDS_WITHIN_S)

    def close(self) -> None:
        self._stopping.set()
        for model in self._models:
            model.finalize()


@dataclass
class Kills:
    """When workers of which instance were killed, and how long until the node had everything back."""

    by_instance: dict[int, list[float]] = field(default_factory=dict)
    reclaim_ms: list[float] = field(default_factory=list)

    def explains(self, ask: Ask) -> bool:
        """A second of slack: until its death is noticed, a worker is sent requests."""
        if ask.error.startswith(NO_WORKER):
            return ask.instance in self.by_instance
        return any(
            ask.asked_s - 1.0 <= killed_s <= ask.sender.ended_s
            for killed_s in self.by_instance.get(ask.instance, [])
        )

    @property
    def count(self) -> int:
        return len(self.reclaim_ms)

    def text(self) -> str:
        ordered = sorted(self.reclaim_ms)
        p95 = ordered[int(0.95 * (len(ordered) - 1))]
        return (
            f"{self.count} kills, reclaim p50 {statistics.median(ordered):.0f} ms, p95 {p95:.0f} ms,"
            f" max {ordered[-1]:.0f} ms"
        )


@contextmanager
def loaded_node(folder: Path, seed: int) -> Iterator[tuple[Node, Load]]:
    with (
        running_node(
            ["-m", "python_backend.node"], folder, pool_bytes=POOL_BLOCKS * BLOCK_BYTES, spares={"chat": 2}
        ) as node,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv(NODE_SOCKET_VARIABLE, str(node.run_dir / "node.sock"))
        load = Load(seed)
        try:
            yield node, load
        finally:
            load.close()


def kill_one(status: Callable[[], node_pb2.NodeStatus], draw: random.Random, kills: Kills) -> None:
    """An attached worker, or now and then a spare, as long as most instances have one; returns when the node has
    taken its leases back."""
    workers = [worker for worker in status().workers if worker.pid]
    attached = [worker for worker in workers if worker.state == "attached"]
    spares = [worker for worker in workers if worker.state == "spare"]
    if len(attached) < NUM_INSTANCES - 1:
        return
    victim = draw.choice(spares) if spares and draw.random() < 0.1 else draw.choice(attached)
    killed_s = time.monotonic()
    if victim.instance:
        kills.by_instance.setdefault(int(victim.instance.removeprefix("chat-")), []).append(killed_s)
    os.kill(victim.pid, signal.SIGKILL)
    until(lambda: victim.pid not in [worker.pid for worker in status().workers])
    kills.reclaim_ms.append((time.monotonic() - killed_s) * 1000)


def is_at_rest(node: Node) -> bool:
    """Every byte is free or cached, and every process under the node is a worker that it knows."""
    status = node.status()
    known = {worker.pid for worker in status.workers}
    states = {worker.state for worker in status.workers}
    return (
        status.pool.leased_bytes == 0
        and status.pool.free_bytes + status.pool.cached_bytes == status.pool.total_bytes
        and states == {"attached", "spare"}
        and len(known) == NUM_INSTANCES + 2
    )


def num_fds(node: Node) -> int:
    return len(os.listdir(f"/proc/{node.process.pid}/fd"))


def assert_kills_hurt_nobody_else(
    folder: Path, num_kills: int, max_pause_s: float, say: Callable[[str], None]
) -> None:
    draw, kills = random.Random(num_kills), Kills()
    with (
        loaded_node(folder, num_kills) as (node, load),
        grpc.insecure_channel(f"unix:{node.run_dir}/control.sock") as channel,
    ):
        get_status = node_pb2_grpc.NodeStub(channel).GetStatus
        until(lambda: len(node.status().workers) == NUM_INSTANCES + 2)
        fds_before, next_line = num_fds(node), 50
        while kills.count < num_kills:
            time.sleep(draw.uniform(0, max_pause_s))
            kill_one(lambda: get_status(node_pb2.GetStatusRequest(), timeout=10), draw, kills)
            if kills.count >= next_line:
                next_line += 50
                say(f"{kills.text()}; {len(load.asked)} requests")
        load.stop()
        until(lambda: is_at_rest(node), ENDS_WITHIN_S)
        failed = [ask for ask in load.asked if ask.error]
        say(f"{kills.text()}; {len(load.asked)} requests, {len(failed)} failed with their workers")
        assert [ask.error for ask in failed if not ask.error.startswith((WORKER_DIED, NO_WORKER))] == []
        assert [ask.error for ask in failed if not kills.explains(ask)] == []
        whole = [ask for ask in load.asked if not ask.error]
        assert [ask for ask in whole if ask.num_tokens_got != ask.num_tokens] == []
        assert {ask.sender.num_finals for ask in load.asked} == {1}
        assert len(whole) > num_kills
        until(lambda: num_fds(node) <= fds_before + FEW_FDS)
        assert "do not add up" not in node.log()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "wide")


def test_killed_workers_leak_nothing_and_hurt_nobody_else(folder: Path) -> None:
    """Twenty-five kills; a thousand in `make soak`."""
    assert_kills_hurt_nobody_else(folder, 25, 0.1, print)


@pytest.mark.soak
def test_a_thousand_killed_workers_leak_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The long form, with a line of progress every 50 kills."""

    def say(text: str) -> None:
        with capsys.disabled():
            print(f"\n{text}", end="", flush=True)

    assert_kills_hurt_nobody_else(folder, 1000, 0.1, say)
