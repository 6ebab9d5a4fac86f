"""Which workers hang: alive, with requests in flight, and without a sign of life for too long. Pure.

A worker counts a word on the board up at every step, at every layer of a long one, and once a second when it has
nothing to do. What stands still while requests wait on it is stopped, deadlocked, or in a forward that never ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from python_backend.node.instances import WorkerId

MAX_STEP_S = 2.0
"""A longer time between two looks counts as this: the node itself was stopped, and perhaps the whole machine with
the workers, who have yet to be given a chance."""


@dataclass(frozen=True)
class Pulse:
    """One attached worker as the board shows it now."""

    worker: WorkerId
    beat: int
    has_work: bool


@dataclass
class _Seen:
    beat: int
    has_work: bool
    silent_s: float = 0.0


@dataclass
class HangWatch:
    timeout_s: float
    _seen: dict[WorkerId, _Seen] = field(default_factory=dict)
    _looked_at: float | None = None

    def look(self, pulses: Sequence[Pulse], now: float) -> list[WorkerId]:
        """Those that have been silent for the time-out, again at every look until they are gone."""
        step_s = 0.0 if self._looked_at is None else min(now - self._looked_at, MAX_STEP_S)
        self._looked_at = now
        seen = {pulse.worker: self._note(pulse, step_s) for pulse in pulses}
        self._seen = seen
        return [worker for worker, entry in seen.items() if entry.silent_s >= self.timeout_s]

    def _note(self, pulse: Pulse, step_s: float) -> _Seen:
        before = self._seen.get(pulse.worker)
        if before is None or before.beat != pulse.beat or not (before.has_work and pulse.has_work):
            return _Seen(pulse.beat, pulse.has_work)
        return _Seen(pulse.beat, True, before.silent_s + step_s)
