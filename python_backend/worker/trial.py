"""Something that may go wrong in any way is first done in a child process: what kills it, kills only the child.

For the fork server, which must survive every model's code. What a trial leaves in memory goes with the child.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from python_backend.worker.errors import ModelRefused

TIMEOUT_S = 60.0
"""No model is bound and no worker is forked meanwhile."""
MAX_REPORT_BYTES = 2000
PR_SET_PDEATHSIG = 1


def try_in_child(action: Callable[[], None], what: str, timeout_s: float = TIMEOUT_S) -> None:
    """Run `action` in a forked child. Only for a process without threads of its own.

    Raises ModelRefused when it raises anything, exits, is killed, or takes longer than `timeout_s`.
    """
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read_fd)
        _run_child(action, write_fd)
    os.close(write_fd)
    try:
        report, is_late = _read_report(read_fd, timeout_s)
    finally:
        os.close(read_fd)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    if is_late:
        raise ModelRefused(f"{what} was not done after {timeout_s:.0f} s and was killed")
    if report != b"ok":
        raise ModelRefused(f"{what} failed: {report.decode(errors='replace') or _ending(status)}")


def _run_child(action: Callable[[], None], write_fd: int) -> NoReturn:
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        with contextlib.suppress(OSError):
            # Should memory run out, this process is the one to go.
            Path("/proc/self/oom_score_adj").write_text("1000")
        report = _outcome(action)
        os.write(write_fd, report.encode()[:MAX_REPORT_BYTES])
    finally:
        os._exit(0)


def _outcome(action: Callable[[], None]) -> str:
    try:
        action()
    except ModelRefused as exc:
        return str(exc)
    except BaseException as exc:  # a model's code may raise SystemExit, or anything
        traceback.print_exc()
        return f"{describe(exc)}{_where(exc)}"
    return "ok"


def refuse_threads() -> None:
    """A process with threads must not fork workers. Raises ModelRefused."""
    names = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    num_native = len(os.listdir("/proc/self/task")) - 1
    if names or num_native:
        raise ModelRefused(
            f"it left {max(len(names), num_native)} threads running ({', '.join(names) or 'not of Python'}),"
            " and workers forked from such a process hang; start them in forward"
        )


def describe(exc: BaseException) -> str:
    """One line, with the error's class."""
    return f"{type(exc).__name__}: {' '.join(str(exc).split())}"[:400]


def _where(exc: BaseException) -> str:
    frames = traceback.extract_tb(exc.__traceback__)
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


def _read_report(fd: int, timeout_s: float) -> tuple[bytes, bool]:
    """What the child has said when it ended, and whether it did not in time."""
    deadline_s = time.monotonic() + timeout_s
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    report = b""
    while (left_s := deadline_s - time.monotonic()) > 0:
        if not poll.poll(left_s * 1000):
            continue
        data = os.read(fd, MAX_REPORT_BYTES)
        if not data:
            return report, False
        report += data
        if report == b"ok":
            return report, False
    return report, True


def _ending(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    if code == -signal.SIGKILL:
        return "its process was killed by signal 9, as happens when the machine's memory is out"
    if code < 0:
        return f"its process crashed by signal {-code} ({signal.Signals(-code).name})"
    return f"its process ended with status {code} before it was done (os._exit?)"
