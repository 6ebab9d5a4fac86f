"""Calls as the console sees them: those in flight, what the last minutes' were like, the latest errors.

Fed from the hot path: `begin`, `end` and `note` cost about a microsecond each, everything else waits until somebody
looks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from heapq import nlargest
from typing import Any, NamedTuple, TypeVar

from gateway.call import Call
from gateway.console.history import STEP_S
from gateway.console.tally import Tally, merged, percentile
from ledger.calls import CallRow

_Name = TypeVar("_Name")

WINDOW_S = 300.0
"""Counts and percentiles beside models and versions are of the last five minutes."""
NUM_STEPS = int(WINDOW_S / STEP_S)
MAX_ERRORS = 100
MAX_SLOWEST = 10
MAX_SHOWN_IN_FLIGHT = 50


class Key(NamedTuple):
    """Whose calls are counted together."""

    service: str
    version: str
    model: str


class CallBook:
    """One for the gateway; used from its event loop alone."""

    def __init__(self) -> None:
        self._in_flight: dict[int, Call] = {}
        self._begun: list[Call] = []
        self._now: dict[Key, Tally] = {}
        self._steps: deque[dict[Key, Tally]] = deque(maxlen=NUM_STEPS)
        self._merged: dict[Key, Tally] = {}
        """Of `_steps`, made anew once a step."""
        self._errors: deque[CallRow] = deque(maxlen=MAX_ERRORS)
        self._traced: list[CallRow] = []
        self._slowest: deque[list[CallRow]] = deque(maxlen=NUM_STEPS)
        """Of each step's traced calls."""

    def begin(self, call: Call) -> None:
        """It has named a service that it may use."""
        self._in_flight[id(call)] = call
        self._begun.append(call)

    def end(self, call: Call) -> None:
        """Also of calls that never began here."""
        self._in_flight.pop(id(call), None)

    def note(self, row: CallRow) -> None:
        """Of an attempt that has ended. Copies for shadows are nobody's call."""
        if row.is_shadow:
            return
        key = Key(row.service, row.version, row.model)
        tally = self._now.get(key)
        if tally is None:
            tally = self._now[key] = Tally()
        tally.add(row)
        if row.outcome == "error":
            self._errors.append(row)
        elif row.trace_id:
            self._traced.append(row)

    def end_step(self) -> dict[str, int]:
        """Every STEP_S. Model -> calls that came in the step that ends."""
        self._steps.append(self._now)
        self._now = {}
        self._slowest.append(_slowest_of(self._traced))
        self._traced = []
        keys = {key for step in self._steps for key in step}
        self._merged = {key: merged(step[key] for step in self._steps if key in step) for key in keys}
        begun = _by_model(self._begun)
        self._begun.clear()
        return begun

    def of_models(self) -> dict[str, Tally]:
        """Of the window: Triton's model, or the service of calls that found none."""
        return _grouped([self._merged, self._now], lambda key: key.model or key.service)

    def of_versions(self) -> dict[tuple[str, str], Tally]:
        """Of the window: (service, version)."""
        return _grouped([self._merged, self._now], lambda key: (key.service, key.version))

    def of_last_steps(self, num: int) -> dict[str, Tally]:
        """Model -> of the last `num` steps that have ended."""
        return _grouped(list(self._steps)[-num:], lambda key: key.model or key.service)

    @property
    def num_in_flight(self) -> int:
        return len(self._in_flight)

    def in_flight_of(self) -> dict[str, int]:
        """Model -> calls."""
        return _by_model(self._in_flight.values())

    def slowest(self) -> list[dict[str, Any]]:
        """Of the window's traced calls that did not fail: slow ones are kept, so these are among them."""
        return [
            {
                "at_unix_s": round(row.started_unix_s, 3),
                "request_id": row.request_id,
                "trace_id": row.trace_id,
                "service": row.service,
                "version": row.version,
                "tenant": row.tenant,
                "prompt_tokens": row.prompt_tokens,
                "output_tokens": row.output_tokens,
                "queue_s": row.queue_s,
                "ttft_s": row.ttft_s,
                "duration_s": round(row.duration_s, 3),
            }
            for row in _slowest_of([*self._traced, *(row for step in self._slowest for row in step)])
        ]

    def errors(self) -> list[dict[str, Any]]:
        """The newest first. Their texts hold no keys (`ledger.keys.without_secrets`)."""
        return [
            {
                "at_unix_s": round(row.started_unix_s + row.duration_s, 3),
                "request_id": row.request_id,
                "trace_id": row.trace_id,
                "service": row.service,
                "version": row.version,
                "tenant": row.tenant,
                "door": row.door,
                "status": row.status,
                "code": row.error_code,
                "text": row.error[:500],
                "duration_s": round(row.duration_s, 3),
                "attempt": row.attempt,
            }
            for row in reversed(self._errors)
        ]

    def longest(self, now_s: float) -> list[dict[str, Any]]:
        """Those in flight for longest, at most MAX_SHOWN_IN_FLIGHT; dictionaries keep the order of arrival."""
        oldest = list(self._in_flight.values())[:MAX_SHOWN_IN_FLIGHT]
        return [
            {
                "request_id": call.request_id,
                "service": call.service,
                "version": call.target.version_name if call.target else "",
                "tenant": call.principal.tenant,
                "door": call.door,
                "age_s": round(now_s - call.started_s, 3),
                "prompt_tokens": call.num_prompt_tokens,
                "state": _state(call),
            }
            for call in oldest
        ]


def figures(tally: Tally, span_s: float) -> dict[str, Any]:
    """As the page shows them; a cancelled call counts as a call and tells no time."""
    return {
        "num": tally.num_calls,
        "failed": tally.num_failed,
        "ttft_p50_s": percentile(tally.ttfts, 0.5),
        "ttft_p99_s": percentile(tally.ttfts, 0.99),
        "latency_p50_s": percentile(tally.latencies, 0.5),
        "latency_p99_s": percentile(tally.latencies, 0.99),
        "tokens_per_s": tally.num_tokens / span_s,
    }


def model_of(call: Call) -> str:
    """Triton's model where that is known already, else the service's name."""
    return call.target.model if call.target else call.service


def _state(call: Call) -> str:
    if call.first_text_s is not None:
        return "answering"
    return "waiting for its turn" if call.admission is None else "waiting for its answer"


def _slowest_of(rows: Iterable[CallRow]) -> list[CallRow]:
    """By the time until a first text, where there was one: a long answer is not a slow one."""
    return nlargest(MAX_SLOWEST, rows, key=lambda row: row.duration_s if row.ttft_s is None else row.ttft_s)


def _by_model(calls: Iterable[Call]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for call in calls:
        name = model_of(call)
        counts[name] = counts.get(name, 0) + 1
    return counts


def _grouped(steps: Sequence[dict[Key, Tally]], name_of: Callable[[Key], _Name]) -> dict[_Name, Tally]:
    found: dict[_Name, list[Tally]] = {}
    for step in steps:
        for key, tally in step.items():
            found.setdefault(name_of(key), []).append(tally)
    return {name: merged(tallies) for name, tallies in found.items()}
