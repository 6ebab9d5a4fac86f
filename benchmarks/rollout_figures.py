"""What the calls say of a rollout. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.report import Figure
from benchmarks.rollout_calls import Call

SIGMAS = 3.0


@dataclass(frozen=True)
class Window:
    """From when a percentage was in force to when it was about to change, by `time.monotonic()`."""

    percent: float
    from_s: float
    to_s: float
    num_calls: int
    """That count: the first ones without a session."""


@dataclass(frozen=True)
class Rollback:
    """The command's start and return, between them the revision, and until when the answers were looked at."""

    started_s: float
    written_s: float
    """The revision is in the ledger."""
    returned_s: float
    to_s: float


def between(calls: Iterable[Call], from_s: float, to_s: float) -> list[Call]:
    """Those that began then, oldest first."""
    return sorted((call for call in calls if from_s <= call.began_s < to_s), key=lambda call: call.began_s)


def share(calls: Sequence[Call], window: Window, version: str) -> Figure | None:
    """Percent of the window's calls that `version` answered, with the bounds in which 3 sigma of the binomial lie.
    None: no call was answered."""
    singles = [call for call in between(calls, window.from_s, window.to_s) if not call.session]
    answered = [call for call in singles[: window.num_calls] if call.version]
    if not answered:
        return None
    low, high = bounds(window.percent, len(answered))
    found = sum(call.version == version for call in answered) / len(answered) * 100
    return Figure(found, "%", low, high)


def bounds(percent: float, num_calls: int) -> tuple[float, float]:
    """Percent. At 0 and 100 both are the same: there the split is exact."""
    part = percent / 100
    spread = SIGMAS * math.sqrt(part * (1 - part) / num_calls) * 100
    return max(0.0, percent - spread), min(100.0, percent + spread)


def is_within(figure: Figure) -> bool:
    """Is the value between its own bounds?"""
    value, low, high = figure.value, figure.low, figure.high
    return isinstance(value, float) and low is not None and high is not None and low <= value <= high


def versions_of_sessions(calls: Iterable[Call]) -> dict[str, set[str]]:
    """Who answered each session."""
    found: dict[str, set[str]] = {}
    for call in calls:
        if call.session and call.version:
            found.setdefault(call.session, set()).add(call.version)
    return found


def seen_until_s(calls: Iterable[Call], version: str, from_s: float, to_s: float) -> float:
    """From `from_s` to the beginning of the last call that `version` still answered; 0: it answered none."""
    began_s = [call.began_s for call in between(calls, from_s, to_s) if call.version == version]
    return began_s[-1] - from_s if began_s else 0.0
