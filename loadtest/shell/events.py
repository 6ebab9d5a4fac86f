"""A request as Locust's request events: the whole of it, its first token, its time per token."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from loadtest.shell.lines import Told


class RequestFailed(Exception):
    """What Locust's failures table shows."""


def events_of(told: Told) -> Iterator[dict[str, Any]]:
    """Keyword arguments of `environment.events.request.fire`; times in ms from the intended start."""
    problem = RequestFailed(told.problem) if told.problem else None
    yield _event("TURN" if told.turn else "REQUEST", told.user, told.latency_s, problem)
    if told.ttft_s is not None:
        yield _event("TTFT", told.user, told.ttft_s, None)
    if told.tpot_s is not None:
        yield _event("TPOT", told.user, told.tpot_s, None)


def _event(kind: str, user: str, seconds: float, problem: Exception | None) -> dict[str, Any]:
    return {
        "request_type": kind,
        "name": user,
        "response_time": seconds * 1000,
        "response_length": 0,
        "exception": problem,
        "context": {},
    }
