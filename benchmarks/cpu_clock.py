"""Processor time of a process to the nanosecond: /proc counts in ticks of 10 ms, too coarse for short rounds."""

from __future__ import annotations

import time

_SCHEDULED = 2
"""CPUCLOCK_SCHED of the kernel's include/linux/posix-timers_types.h; clock_getcpuclockid(3) makes the same id."""


def cpu_s(pid: int) -> float:
    """User and system, all threads. Raises OSError when there is no such process."""
    return time.clock_gettime((~pid << 3) | _SCHEDULED)
