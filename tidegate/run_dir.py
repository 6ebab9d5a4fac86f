"""The run directory: ours alone (0700), one stack at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from tidegate.launch_errors import RunDirUnusable
from tidegate.ports import name_process

LOCK_NAME = "up.lock"
MAX_SOCKET_PATH_BYTES = 107
LONGEST_SOCKET_NAME = "control.sock"


def prepare(run_dir: Path) -> None:
    """Raises RunDirUnusable. The path is in a shared folder by default, so someone else's is refused."""
    if (size := len(os.fsencode(run_dir / LONGEST_SOCKET_NAME))) > MAX_SOCKET_PATH_BYTES:
        raise RunDirUnusable(
            f"run directory {run_dir} is too long: its sockets' paths have {size} bytes, at most "
            f"{MAX_SOCKET_PATH_BYTES} are allowed; name a shorter one: --run-dir or TIDEGATE_RUN_DIR"
        )
    try:
        run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if run_dir.stat().st_uid != os.getuid():
            raise RunDirUnusable(
                f"{run_dir} belongs to another user; name another: --run-dir or TIDEGATE_RUN_DIR"
            )
        run_dir.chmod(0o700)
        for part in ("logs", "triton", "locks"):
            (run_dir / part).mkdir(mode=0o700, exist_ok=True)
    except OSError as exc:
        raise RunDirUnusable(f"run directory {run_dir}: {exc.strerror}; name another with --run-dir") from exc


@contextlib.contextmanager
def held(run_dir: Path) -> Iterator[None]:
    """Hold the folder while a stack runs there. Raises RunDirUnusable naming who does."""
    fd = os.open(run_dir / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 32, 0).decode().strip()
            who = name_process(int(holder)) if holder.isdigit() else "another process"
            raise RunDirUnusable(
                f"a stack runs in {run_dir} already: {who}; stop it, or name another: --run-dir or TIDEGATE_RUN_DIR"
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(fd)
