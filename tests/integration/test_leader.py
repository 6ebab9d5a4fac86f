"""Processes that want to lead: killed, stopped, cut off. At no time do two lead."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.fake_kubernetes import LEASE, FakeKubernetes, serving

pytestmark = pytest.mark.integration

PROGRAM = str(Path(__file__).parent / "leader_process.py")


class Candidate:
    """One process, and what it said at each look."""

    def __init__(self, name: str, kind: str, place: str) -> None:
        argv = [sys.executable, PROGRAM, name, kind, place]
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        self.looks: list[tuple[float, bool]] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout
        with self.process.stdout as lines:
            for line in lines:
                at_s, leads = line.split()
                self.looks.append((float(at_s), leads == "1"))

    @property
    def leads(self) -> bool:
        return bool(self.looks) and self.looks[-1][1]

    @property
    def led_at(self) -> list[float]:
        return [at_s for at_s, leads in self.looks if leads]

    def end(self, sign: signal.Signals = signal.SIGTERM) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(sign)
        self.process.wait(20)
        self._reader.join(20)


Start = Callable[[str], Candidate]


@pytest.fixture
def fake() -> FakeKubernetes:
    return FakeKubernetes()


@pytest.fixture(params=["file", "lease"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def start(kind: str, fake: FakeKubernetes, tmp_path: Path) -> Iterator[Start]:
    started: list[Candidate] = []

    def begin(name: str) -> Candidate:
        started.append(Candidate(name, kind, str(tmp_path) if kind == "file" else kubeconfig))
        return started[-1]

    with serving(fake, tmp_path) as kubeconfig:
        yield begin
        for each in started:
            each.end()
    never_two(started)


def never_two(candidates: list[Candidate]) -> None:
    """By the clock of the machine, each one's looks as a leader lie together: no test here has one lead again."""
    looks = sorted((at_s, name) for name, each in enumerate(candidates) for at_s in each.led_at)
    order = [name for _, name in looks]
    terms = [name for name, before in zip(order, [None, *order], strict=False) if name != before]
    assert len(terms) == len(set(terms)), f"they led in turns: {terms}"


def until(holds: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.01)


def test_a_killed_leader_is_followed_by_the_other(start: Start) -> None:
    """kill -9: the kernel frees the file at once; the lease runs out after two seconds."""
    first = start("first")
    until(lambda: first.leads, "the first one leads")
    second = start("second")
    until(lambda: len(second.looks) > 30, "the second one looked three times")
    assert not second.leads
    first.end(signal.SIGKILL)
    until(lambda: second.leads, "the second one leads")


def test_a_leader_that_ends_in_order_gives_up_its_place(
    start: Start, kind: str, fake: FakeKubernetes
) -> None:
    """SIGTERM: the lease has no holder then, and a leader that starts later need not wait for it to run out."""
    first = start("first")
    until(lambda: first.leads, "the first one leads")
    first.end()
    if kind == "lease":
        assert "holderIdentity" not in fake.objects[LEASE]["spec"]
    second = start("second")
    until(lambda: second.leads, "the second one leads")


@pytest.mark.parametrize("kind", ["lease"])
def test_a_leader_that_was_stopped_knows_at_once_that_it_no_longer_leads(start: Start, kind: str) -> None:
    """SIGSTOP until another leads, then SIGCONT: not one look more at which it leads."""
    first = start("first")
    until(lambda: first.leads, "the first one leads")
    first.process.send_signal(signal.SIGSTOP)
    second = start("second")
    until(lambda: second.leads, "the second one leads")
    num_looks = len(first.looks)
    first.process.send_signal(signal.SIGCONT)
    until(lambda: len(first.looks) > num_looks + 20, "the first one goes on")
    assert not any(leads for _, leads in first.looks[num_looks + 1 :])
    assert second.leads


@pytest.mark.parametrize("kind", ["lease"])
def test_a_leader_cut_off_from_the_api_server_steps_down_by_itself(
    start: Start, kind: str, fake: FakeKubernetes
) -> None:
    """Nobody leads while the server is down; afterwards one does."""
    first = start("first")
    until(lambda: first.leads, "the first one leads")
    fake.is_down = True
    until(lambda: not first.leads, "the first one steps down")
    fake.is_down = False
    until(lambda: first.leads, "the first one leads again")
