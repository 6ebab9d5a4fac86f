"""Ends stubs that never finish starting. Only on the host that Triton runs on.

Triton itself has no way back from an `initialize` that does not return: the load call never ends, every later load
and unload of the model waits behind it, and the config goes on to show the old count. When the stub dies, Triton
drops the whole update within about a second and all is as before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from pathlib import Path

import psutil

STUB_NAME = "triton_python_backend_stub"


def end_stubs(triton_pid: int, model: str, instances: Collection[str]) -> list[int]:
    """Kill the stubs of these instances. Returns their pids; empty when there are none, or Triton is gone."""
    ended = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(triton_pid).children():
            with contextlib.suppress(psutil.Error):
                if instance_of(child.cmdline(), model) in instances:
                    child.kill()
                    ended.append(child.pid)
    return ended


def instance_of(argv: list[str], model: str) -> str:
    """ "chat-3" of the stub's command line: stub, REPOSITORY/MODEL/VERSION/model.py, .., chat-3_0, runtime.

    Empty for anything that is not a stub of the model.
    """
    if len(argv) < 9 or Path(argv[0]).name != STUB_NAME or Path(argv[1]).parent.parent.name != model:
        return ""
    return argv[-2].rpartition("_")[0]
