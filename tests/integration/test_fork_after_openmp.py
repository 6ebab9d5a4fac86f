"""A worker is forked from a process that has imported torch and bound a model, and then uses several threads.

OpenMP's threads do not survive a fork: had the fork server started any, the first parallel region of its child
would wait for them for ever (seen here with two threads in the parent).
"""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.integration

PROGRAM = """
import os, signal, sys
from python_backend.worker import forkserver
import torch

PARENT_THREADS = int(sys.argv[1])


def serve(self):
    # In place of the fork server's loop: what binding does at most, then a worker that computes
    if PARENT_THREADS > 1:
        torch.set_num_threads(PARENT_THREADS)
    x = torch.ones(768, 768)
    (x @ x).add_(1.0).exp_()
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        torch.set_num_threads(2)
        big = torch.ones(3_000_000).exp_().sum().item()
        os._exit(0 if (x @ x).sum() > 0 and big > 0 else 1)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


forkserver.ForkServer.run = serve
sys.argv = ["forkserver", "--fd", "0"]
import socket
left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
sys.argv[-1] = str(left.detach())
forkserver.main()
"""


def exit_of_a_worker(parent_threads: int) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(parent_threads)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_worker_forked_from_the_bound_server_computes_with_threads() -> None:
    """The fork server's own settings, then a fork, then two threads."""
    assert exit_of_a_worker(1) == "0"
