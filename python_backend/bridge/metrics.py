"""One instance's engine in Triton's own /metrics: latencies as the requests saw them, and the worker's counters.

Each call of Triton's metrics is a message to its process, so nothing here is called while a request waits: finished
requests are put down, and a thread hands everything over once a second.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import triton_python_backend_utils as pb_utils

from contracts.buckets import TPOT_BUCKETS_S, TTFT_BUCKETS_S
from python_backend.board import Slot

log = logging.getLogger("tidegate.bridge")

PERIOD_S = 1.0
CLOSE_TIMEOUT_S = 2.0
MAX_UNTOLD = 10_000
"""Requests that end while Triton takes no figures; the oldest are forgotten."""

_GAUGES: Mapping[str, tuple[str, Callable[[Slot], int]]] = {
    "running_sequences": ("In the engine's batch.", lambda slot: slot.running),
    "waiting_sequences": ("In the engine, and not in its batch.", lambda slot: slot.waiting),
    "in_flight_requests": ("Accepted, and not answered to the end.", lambda slot: slot.in_flight),
    "kv_used_blocks": ("KV blocks of running sequences.", lambda slot: slot.blocks_used),
    "kv_leased_blocks": ("KV blocks leased from the node's pool.", lambda slot: slot.blocks_leased),
}
_COUNTERS: Mapping[str, tuple[str, Callable[[Slot], int]]] = {
    "output_tokens_total": ("Tokens generated.", lambda slot: slot.tokens_out),
    "preemptions_total": ("Sequences that gave up their blocks.", lambda slot: slot.preemptions),
    "cached_tokens_total": ("Prompt tokens found in published blocks.", lambda slot: slot.cached_tokens),
}


class Finished(NamedTuple):
    """One request that was answered. Seconds since it came to this instance."""

    first_token_s: float
    last_token_s: float
    num_output_tokens: int


class EngineFigures:
    """One instance's metrics as Triton has them. Triton deletes a family with its object here, and its metrics say
    nothing from then on: keep this as long as the instance serves, and `forget` before it goes."""

    def __init__(self, model: str, instance: str) -> None:
        self._labels = {"model": model, "instance": instance}
        self._last: dict[str, int] = {}
        self._families: list[Any] = []
        kinds = pb_utils.MetricFamily
        self._gauges = {name: self._metric(name, text, kinds.GAUGE) for name, (text, _) in _GAUGES.items()}
        self._counters = {
            name: self._metric(name, text, kinds.COUNTER) for name, (text, _) in _COUNTERS.items()
        }
        self._ttft = self._metric(
            "time_to_first_token_seconds",
            "From a request's arrival at the instance to its first token.",
            kinds.HISTOGRAM,
            TTFT_BUCKETS_S,
        )
        self._tpot = self._metric(
            "time_per_output_token_seconds",
            "(last - first token) / (output tokens - 1), of requests with two tokens and more.",
            kinds.HISTOGRAM,
            TPOT_BUCKETS_S,
        )

    def tell(self, slot: Slot, untold: deque[Finished]) -> None:
        """Empties `untold`."""
        for name, (_, value) in _GAUGES.items():
            self._gauges[name].set(value(slot))
        for name, (_, value) in _COUNTERS.items():
            now, before = value(slot), self._last.get(name, 0)
            # The next worker of the instance counts from 0 again.
            if grown := now - before if now >= before else now:
                self._counters[name].increment(grown)
            self._last[name] = now
        for _ in range(len(untold)):
            request = untold.popleft()
            self._ttft.observe(request.first_token_s)
            if request.num_output_tokens > 1:
                took_s = request.last_token_s - request.first_token_s
                self._tpot.observe(took_s / (request.num_output_tokens - 1))

    def forget(self) -> None:
        """The instance's lines go: metrics before their families, as Triton wants it."""
        self._gauges.clear()
        self._counters.clear()
        del self._ttft, self._tpot
        self._families.clear()

    def _metric(self, name: str, text: str, kind: Any, buckets: tuple[float, ...] | None = None) -> Any:
        family = pb_utils.MetricFamily(name=f"tidegate_engine_{name}", description=text, kind=kind)
        self._families.append(family)
        if buckets is None:
            return family.Metric(labels=self._labels)
        return family.Metric(labels=self._labels, buckets=list(buckets))


class EngineMetrics:
    """`finished` each request; `close` it before the instance goes. Triton's trouble with it stops nothing."""

    def __init__(self, model: str, instance: str, read_slot: Callable[[], Slot]) -> None:
        self._name = (model, instance)
        self._read_slot = read_slot
        self._untold: deque[Finished] = deque(maxlen=MAX_UNTOLD)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()

    def finished(self, request: Finished) -> None:
        self._untold.append(request)

    def close(self) -> None:
        self._closing.set()
        self._thread.join(CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        try:
            figures = EngineFigures(*self._name)
            while not self._closing.wait(PERIOD_S):
                figures.tell(self._read_slot(), self._untold)
            figures.forget()
        except Exception:
            log.exception("no engine metrics of this instance any more")
