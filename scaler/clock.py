"""Time that a control loop can trust: it never jumps, so no cooldown ends early or never."""

from __future__ import annotations

import time
from collections.abc import Callable

MAX_SLEW = 0.05
"""Least and most that a second may differ from a second while the wall clock is caught up with."""


def steady_unix_clock(
    wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic
) -> Callable[[], float]:
    """Seconds since 1970 that go by the steady clock, and drift towards the wall clock when that was set.

    Reservations need the wall clock, cooldowns need one that does not jump: after a step of an hour this one
    takes 20 hours to follow, by 5 % at most.
    """
    last_steady_s, now_s = steady(), wall()

    def now() -> float:
        nonlocal last_steady_s, now_s
        passed_s = max(0.0, steady() - last_steady_s)
        last_steady_s += passed_s
        gap_s = wall() - (now_s + passed_s)
        now_s += passed_s + max(-MAX_SLEW * passed_s, min(MAX_SLEW * passed_s, gap_s))
        return now_s

    return now
