"""Spans between those who bring them and those who keep them: a bounded buffer, and the thread that empties it."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from contracts.tracing.span import Span
from contracts.tracing.store import StoreError, TraceStore
from telemetry.exporting import Forwarder

logger = logging.getLogger("telemetry")

FLUSH_S = 0.2
MAX_BUFFERED = 20_000
PRUNE_EVERY_S = 30.0
SAY_EVERY_S = 60.0


class Intake:
    """`put` from any thread. Close it: what is buffered is kept then."""

    def __init__(
        self,
        store: TraceStore,
        forwarder: Forwarder | None,
        *,
        keep_s: float,
        max_spans: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._forwarder = forwarder
        self._keep_s = keep_s
        self._max_spans = max_spans
        self._clock = clock
        self._spans: deque[Span] = deque()
        self._lock = threading.Lock()
        self.num_dropped = 0
        self._is_closing = threading.Event()
        self._prune_at = self._say_at = float("-inf")
        self._said_dropped = 0
        self._thread = threading.Thread(target=self._run, name="intake", daemon=True)
        self._thread.start()

    def put(self, spans: Sequence[Span]) -> None:
        """The newest are dropped when there is no room."""
        with self._lock:
            room = MAX_BUFFERED - len(self._spans)
            self._spans.extend(spans[:room])
            self.num_dropped += max(0, len(spans) - room)

    def close(self) -> None:
        self._is_closing.set()
        self._thread.join()

    def _run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._is_closing.wait(FLUSH_S)
            self._flush()

    def _flush(self) -> None:
        with self._lock:
            spans, self._spans = list(self._spans), deque()
        try:
            if spans:
                self._store.add(spans, self._clock())
            if self._clock() >= self._prune_at:
                self._prune_at = self._clock() + PRUNE_EVERY_S
                self._store.prune(self._clock() - self._keep_s, self._max_spans)
        except StoreError as exc:
            self._say(f"{len(spans)} spans are not kept: {exc}")
        if self._forwarder is not None:
            self._forwarder.forward(spans)
        if self.num_dropped > self._said_dropped:
            self._say(f"{self.num_dropped} spans dropped so far: more came than could be written")
            self._said_dropped = self.num_dropped

    def _say(self, text: str) -> None:
        if self._clock() >= self._say_at:
            self._say_at = self._clock() + SAY_EVERY_S
            logger.warning("%s", text)
