"""The node as the launcher keeps it, with children of a few lines in its place."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tidegate import processes, restarts
from tidegate.kept_process import EXIT_CONFIG
from tidegate.launch_errors import ProcessFailed
from tidegate.node_process import NodeProcess

pytestmark = pytest.mark.integration

SERVE = "print('tidegate-ready node', flush=True); import time; time.sleep(60)"


class Kept:
    """A NodeProcess whose n-th start runs the n-th program (the last one for ever), watched until `holds`."""

    def __init__(self, folder: Path, *programs: str) -> None:
        self.said: list[str] = []
        self.num_starts = self.num_ready = 0
        self._folder = folder
        self._programs = programs
        self.node = NodeProcess(
            self._spawn,
            self._wait_ready,
            self._on_ready,
            str(folder / "control.sock"),
            60.0,
            self.said.append,
        )

    def _spawn(self) -> processes.Child:
        program = self._programs[min(self.num_starts, len(self._programs) - 1)]
        self.num_starts += 1
        argv = [sys.executable, "-c", program]
        return processes.start("node", argv, env=os.environ, log_dir=self._folder)

    async def _wait_ready(self, child: processes.Child) -> None:
        await processes.wait_ready(child, processes.ready_line(child), 10.0)

    def _on_ready(self) -> None:
        self.num_ready += 1

    async def watch_until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not holds():  # as the launcher does
                self.node.watch()
                await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "FIRST_PAUSE_S", 0.01)


async def test_a_killed_node_is_started_again(tmp_path: Path) -> None:
    """Its death and the way on are said, and whoever wants to know hears of the new one."""
    kept = Kept(tmp_path, SERVE)
    await kept.node.first_ready()
    first = kept.node.child.pid
    os.kill(first, signal.SIGKILL)
    await kept.watch_until(lambda: kept.num_ready == 1)
    assert kept.node.child.pid != first
    assert f"node (pid {first}) ended with signal SIGKILL" in kept.said[0]
    assert await kept.node.stop(5)


async def test_a_node_that_keeps_dying_is_given_up_with_its_last_words(tmp_path: Path) -> None:
    """Not a loop for ever."""
    kept = Kept(tmp_path, SERVE, "print('no memory left'); raise SystemExit(1)")
    await kept.node.first_ready()
    os.kill(kept.node.child.pid, signal.SIGKILL)
    with pytest.raises(
        ProcessFailed, match=r"given up after 5 quick deaths in a row: node .*\n.*no memory left"
    ):
        await kept.watch_until(lambda: False)
    assert kept.num_starts == restarts.MAX_QUICK_DEATHS


async def test_a_configuration_that_makes_no_sense_is_not_tried_again(tmp_path: Path) -> None:
    """The node's exit code says so."""
    kept = Kept(tmp_path, SERVE, f"print('pool_share = 7'); raise SystemExit({EXIT_CONFIG})")
    await kept.node.first_ready()
    os.kill(kept.node.child.pid, signal.SIGKILL)
    with pytest.raises(ProcessFailed, match=r"exit code 78.*\n.*pool_share = 7"):
        await kept.watch_until(lambda: False)
    assert kept.num_starts == 2


async def test_what_does_not_come_up_at_first_is_not_tried_again(tmp_path: Path) -> None:
    """A stack that cannot start says why at once."""
    kept = Kept(tmp_path, "raise SystemExit('no such model')")
    with pytest.raises(ProcessFailed, match="no such model"):
        await kept.node.first_ready()
    assert kept.num_starts == 1


async def test_a_stop_during_the_pause_before_a_restart_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while the node is down."""
    monkeypatch.setattr(restarts, "FIRST_PAUSE_S", 60.0)
    kept = Kept(tmp_path, SERVE)
    await kept.node.first_ready()
    os.kill(kept.node.child.pid, signal.SIGKILL)
    await kept.watch_until(lambda: bool(kept.said))
    await kept.node.stop(5)
    assert kept.num_starts == 1


async def test_a_node_that_answers_nothing_is_killed_and_started_again(tmp_path: Path) -> None:
    """This one never listens on its control socket."""
    kept = Kept(tmp_path, SERVE)
    await kept.node.first_ready()
    kept.node._probe_s = 0.05
    await kept.watch_until(lambda: kept.num_ready == 1)
    assert "has not answered" in kept.said[0]
    await kept.node.stop(5)
