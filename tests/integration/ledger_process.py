"""A process that logs calls until it is told to stop: URL as its argument, a line per 20 calls on its output."""

from __future__ import annotations

import signal
import sys
import time
from itertools import count
from types import FrameType

from ledger.store import Store
from ledger.writer import CallWriter
from tests.unit.ledger.rows import call


def main(url: str) -> None:
    stopped = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopped
        stopped = True

    signal.signal(signal.SIGTERM, stop)
    num_put = 0
    with CallWriter(Store.open(url)) as writer:
        for number in count():
            if stopped:
                break
            writer.put(call(number))
            num_put += 1
            if num_put % 20 == 0:
                # Put so many, of which so many are perhaps not in the database.
                print(num_put, writer.stats().num_buffered, flush=True)
            time.sleep(0.0005)
    print(num_put, writer.stats().num_buffered, flush=True)


main(sys.argv[1])
