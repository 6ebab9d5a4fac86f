"""Ctrl-C and SIGTERM end the load, not the process: what was measured is still judged and written."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def stopped_by_signals(say: Callable[[str], None]) -> Iterator[threading.Event]:
    """The event that a run looks at. A second signal ends the process at once, as ever."""
    stop = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def heard(number: int, frame: FrameType | None) -> None:
        stop.set()
        for each, handler in before.items():
            signal.signal(each, handler)
        say("stopping: open requests are let go, and what was measured is kept; once more gives up at once")

    for number in before:
        signal.signal(number, heard)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
