"""The scaler as the launcher keeps it: whatever becomes of it, the stack goes on."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tidegate import processes
from tidegate.launch_errors import ProcessFailed
from tidegate.restarts import MAX_QUICK_DEATHS
from tidegate.scaler_process import EXIT_CONFIG, ScalerProcess


@dataclass
class FakeChild:
    """A `processes.Child` whose end is up to the test."""

    pid: int
    exit_code: int | None = None
    name: str = "scaler"
    log_path: Path = Path("/nowhere")

    def log_text(self) -> str:
        return "its last words"


async def no_sleep(seconds: float) -> None: ...


@dataclass
class Rig:
    children: list[FakeChild] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    num_ready: int = 0
    fails: bool = False
    is_well: bool = True
    killed: list[int] = field(default_factory=list)

    def spawn(self) -> Any:
        self.children.append(FakeChild(pid=len(self.children) + 1))
        return self.children[-1]

    async def wait_ready(self, child: Any) -> None:
        if self.fails:
            child.exit_code = 1
            raise ProcessFailed("it ended")

    def on_ready(self) -> None:
        self.num_ready += 1

    def make(self) -> ScalerProcess:
        return ScalerProcess(
            self.spawn, self.wait_ready, self.on_ready, self.said.append, self.answers, 20.0, sleep=no_sleep
        )

    async def answers(self) -> bool:
        await asyncio.sleep(0)
        return self.is_well

    def kill(self, child: Any) -> None:
        if child.exit_code is None:
            child.exit_code = -9
            self.killed.append(child.pid)


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    made = Rig()
    monkeypatch.setattr(processes, "kill_group", made.kill)
    return made


async def watch(kept: ScalerProcess, num_looks: int = 50) -> None:
    for _ in range(num_looks):
        kept.watch()
        await asyncio.sleep(0)


async def test_one_that_died_is_started_again_and_the_stack_is_told_its_pid(rig: Rig) -> None:
    """Killed twice: three processes, two of them announced."""
    kept = rig.make()
    await kept.first_ready()
    for _ in range(2):
        rig.children[-1].exit_code = -9
        await watch(kept)
    assert (len(rig.children), rig.num_ready, kept.is_given_up) == (3, 2, False)
    assert "signal SIGKILL" in rig.said[0]
    assert "instances stay as they are until it is there again" in rig.said[0]


async def test_one_that_keeps_dying_is_given_up_and_nothing_is_raised(rig: Rig) -> None:
    """Five quick deaths; the stack serves on."""
    rig.fails = True
    kept = rig.make()
    await kept.first_ready()
    await watch(kept, 200)
    assert (len(rig.children), rig.num_ready, kept.is_given_up) == (MAX_QUICK_DEATHS, 0, True)
    assert rig.said[-1].endswith("serving on without a scaler: the number of instances stays as it is")


async def test_one_that_says_its_settings_make_no_sense_is_not_tried_again(rig: Rig) -> None:
    """Exit code 78, its last words shown."""
    kept = rig.make()
    rig.children[-1].exit_code = EXIT_CONFIG
    await watch(kept)
    assert (len(rig.children), kept.is_given_up) == (1, True)
    assert "its last words" in rig.said[0]


async def test_one_that_hangs_is_killed_and_the_next_one_is_left_alone_while_it_is_well(rig: Rig) -> None:
    """Four probes without an answer."""
    kept = rig.make()
    rig.is_well = False
    while not rig.killed:
        await watch(kept, 1)
    rig.is_well = True
    await watch(kept, 100)
    assert rig.killed == [1]
    assert "scaler (pid 1) has decided nothing for 20 s; killing it" in rig.said[0]
    assert (len(rig.children), rig.num_ready) == (2, 1)
    rig.children[-1].exit_code = 0
    assert await kept.stop(1.0)
