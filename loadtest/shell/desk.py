"""Locust's side of the asker: a user puts a call on the desk and waits, as other greenlets go on."""

from __future__ import annotations

import itertools
import logging
import subprocess
import sys
from typing import IO, Any, cast

import gevent
import msgspec
from gevent.event import AsyncResult, Event
from gevent.lock import Semaphore

from loadtest.call import Call
from loadtest.generating.messages import Target
from loadtest.shell.events import events_of
from loadtest.shell.lines import Ask, Done, FromChild, Open, Ready, Told, line_of

TIMEOUT_S = 120.0
"""Of a request."""
START_S = 30.0
END_S = 5.0

log = logging.getLogger(__name__)


class Desk:
    """One child for all users of a Locust process: about 50 streams are well timed; `--processes` is for more.

    `close` ends the child; users that wait by then are let go.
    """

    def __init__(self, environment: Any) -> None:
        """Waits until the child has loaded what it needs: seconds, on a busy machine."""
        self._environment = environment
        self._numbers = itertools.count()
        self._waiting: dict[int, AsyncResult[None]] = {}
        self._writes = Semaphore()
        # gevent has made Popen and its pipes cooperative.
        self._child = subprocess.Popen(
            [sys.executable, "-m", "loadtest.shell.asker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._is_ready, self._is_closing, self._num_cut = Event(), False, 0
        self._reader = gevent.spawn(self._read)
        self._is_ready.wait(timeout=START_S)

    def open(self, target: Target) -> None:
        """Where calls go; once, and before the first `ask`."""
        self._write(Open(target, TIMEOUT_S))

    def number(self) -> int:
        """Of the next call: it makes its texts."""
        return next(self._numbers)

    def ask(self, call: Call) -> None:
        """Returns when the call and its turns have ended; how, stands in Locust's tables."""
        done: AsyncResult[None] = AsyncResult()
        self._waiting[call.index] = done
        self._write(Ask(call.index, call))
        done.get()

    def close(self) -> None:
        self._is_closing = True
        cast(IO[bytes], self._child.stdin).close()
        try:
            self._child.wait(timeout=END_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._reader.join(timeout=END_S)
        if self._num_cut:
            log.warning("%d requests were under way when the test stopped; no table has them", self._num_cut)

    def _write(self, message: msgspec.Struct) -> None:
        pipe = cast(IO[bytes], self._child.stdin)
        with self._writes:
            pipe.write(line_of(message))
            pipe.flush()

    def _read(self) -> None:
        for line in cast(IO[bytes], self._child.stdout):
            message = msgspec.json.decode(line, type=FromChild)
            if isinstance(message, Ready):
                self._is_ready.set()
            elif isinstance(message, Told):
                self._show(message)
            elif isinstance(message, Done) and (waits := self._waiting.pop(message.id, None)):
                waits.set(None)
        self._is_ready.set()
        for waits in self._waiting.values():
            waits.set(None)

    def _show(self, message: Told) -> None:
        if self._is_closing and message.is_censored:
            self._num_cut += 1  # whoever stops Locust has not found a fault of the server
            return
        for event in events_of(message):
            self._environment.events.request.fire(**event)
