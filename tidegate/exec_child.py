"""Becomes another program that gets SIGTERM when its parent dies: `python -I -S exec_child.py PARENT_PID ARGV...`

A program of its own rather than a `preexec_fn`: the launcher has gRPC threads, and Python code between fork
and exec may deadlock then. Imports nothing of ours, so that it costs milliseconds.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(parent_pid: int, argv: list[str]) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent_pid:  # it died before the call above: no signal will come
        raise SystemExit(1)
    try:
        os.execvp(argv[0], argv)  # noqa: S606  # no shell is the point
    except OSError as exc:
        raise SystemExit(f"cannot run {argv[0]}: {exc.strerror}") from None


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
