"""When a worker's memory may go to the next: not before its process, and so its GPU context, is gone."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from python_backend.node.spares import Worker
from python_backend.node.workers import Workers

pytestmark = pytest.mark.integration

CLOSES_ITS_SOCKET_AND_LIVES = (
    "import os, sys, time; os.close(int(sys.argv[1])); print(flush=True); time.sleep(60)"
)


async def test_extents_return_when_the_process_is_gone_not_when_its_socket_is() -> None:
    """It may still write, by its kernels too; a zombie has closed every file, the GPU's among them."""
    started: list[subprocess.Popen[bytes]] = []
    seen: list[str] = []
    gone = asyncio.Event()

    def spawn(worker: Worker, theirs: socket.socket) -> bool:
        command = [sys.executable, "-c", CLOSES_ITS_SOCKET_AND_LIVES, str(theirs.fileno())]
        started.append(subprocess.Popen(command, pass_fds=(theirs.fileno(),), stdout=subprocess.PIPE))
        return True

    def on_gone(worker: Worker) -> None:
        stat = Path(f"/proc/{worker.pid}/stat").read_text()
        seen.append(stat.rpartition(")")[2].split()[0])
        gone.set()

    workers = Workers(spawn, lambda *_: None, on_gone)
    workers.start("chat")
    (worker,) = workers.all()
    workers.set_pid(worker.id, started[0].pid)
    await asyncio.wait_for(gone.wait(), 30)
    assert seen == ["Z"]
    with started[0] as process:
        assert process.wait() == -9
