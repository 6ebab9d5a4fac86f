"""What served before nobody could say. A Triton that comes back has what its repository says: often one."""

from __future__ import annotations

from scaler.decision import Floor
from scaler.observation import Counts


class LastKnown:
    """A floor at what last served before an outage, until so many are there again or a window has passed.

    Only after an outage: a count that is lower from one tick to the next was changed by somebody, and is theirs.
    """

    def __init__(self) -> None:
        self._num: int | None = None
        self._lost_since_s: float | None = None
        self._floor: Floor | None = None
        self._until_s = 0.0

    def floor(self, counts: Counts | None, window_s: float, now: float) -> Floor | None:
        if counts is None:
            if self._lost_since_s is None:
                self._lost_since_s = now
            return None
        if self._lost_since_s is not None:
            gone_s, self._lost_since_s = now - self._lost_since_s, None
            if self._num is not None and counts.total < self._num:
                words = f"{self._num} served before the count was unknown for {gone_s:.0f} s"
                self._floor, self._until_s = Floor(self._num, words), now + window_s
        if self._floor is not None and counts.total < self._floor.num_instances and now <= self._until_s:
            return self._floor
        self._floor, self._num = None, counts.ready
        return None
