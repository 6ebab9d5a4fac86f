"""A named child process: started in a session of its own, its output in RUN_DIR/logs/NAME.log, ended on a deadline.

Children get SIGTERM when the launcher dies (see `exec_child`), so start them from the main thread: the kernel
counts the death of the *thread* that forked. Nothing here restarts anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidegate import exec_child
from tidegate.launch_errors import ProcessFailed, StartTimeout

POLL_S = 0.02
LOG_TAIL_LINES = 12
KILL_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Child:
    """A running (or ended) child. Its process group has the child's pid as id."""

    name: str
    popen: subprocess.Popen[bytes]
    log_path: Path

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative for a signal."""
        return self.popen.poll()

    def log_text(self) -> str:
        return self.log_path.read_text(errors="replace")


def start(name: str, argv: Sequence[str], *, env: Mapping[str, str], log_dir: Path) -> Child:
    """The log of the run before stays as NAME.previous.log."""
    log_path = log_dir / f"{name}.log"
    if log_path.exists():
        log_path.replace(log_dir / f"{name}.previous.log")
    helper = [sys.executable, "-I", "-S", exec_child.__file__, str(os.getpid())]
    with log_path.open("wb") as log:
        popen = subprocess.Popen(
            [*helper, *argv],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Child(name, popen, log_path)


async def wait_ready(child: Child, is_ready: Callable[[], Awaitable[bool]], timeout_s: float) -> None:
    """Raises ProcessFailed when it exits first, StartTimeout when it takes longer. It is not stopped here."""
    deadline = time.monotonic() + timeout_s
    while not await is_ready():
        if child.exit_code is not None:
            raise ProcessFailed(describe_exit(child))
        if time.monotonic() > deadline:
            raise StartTimeout(
                f"{child.name} was not ready within {timeout_s:.0f} s; its last lines:\n{tail(child.log_text())}"
            )
        await asyncio.sleep(POLL_S)


def ready_line(child: Child) -> Callable[[], Awaitable[bool]]:
    """For `wait_ready`: has the child printed `tidegate-ready NAME`?"""
    line = f"tidegate-ready {child.name}"

    async def is_ready() -> bool:
        return line in child.log_text().splitlines()

    return is_ready


async def stop(child: Child, timeout_s: float) -> bool:
    """SIGTERM, and SIGKILL to its group when it outlives the deadline. Returns whether it went by itself."""
    if child.exit_code is None:
        child.popen.send_signal(signal.SIGTERM)
    went = await exited(child, timeout_s)
    kill_group(child)
    await exited(child, KILL_TIMEOUT_S)
    return went


async def exited(child: Child, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while child.exit_code is None:
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(POLL_S)
    return True


def kill_group(child: Child) -> None:
    """SIGKILL to whatever is left of the child's process group, grandchildren included."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def describe_exit(child: Child) -> str:
    code = child.exit_code
    if code is None:
        return f"{child.name} (pid {child.pid}) runs"
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return f"{child.name} (pid {child.pid}) ended with {how}; its last lines:\n{tail(child.log_text())}"


def tail(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines()[-LOG_TAIL_LINES:])
