"""What served before an outage, and that it is no time to take instances away.

A Triton that comes back has what its repository says, often one instance. A node that comes back has all of them,
without workers for a while: requests fail at once, so nothing looks busy, which says nothing about the load.
"""

from __future__ import annotations

from scaler.deciding.decision import Floor
from scaler.deciding.observation import Counts


class LastKnown:
    """A floor at what last served before an outage, until a window after its end.

    An outage: nobody can say, or instances that served do not and were not taken away. A count that is lower from
    one tick to the next was changed by somebody, and is theirs.
    """

    def __init__(self) -> None:
        self._num_served = 0
        self._lost_since_s: float | None = None
        self._floor: Floor | None = None
        self._until_s = 0.0

    def floor(self, counts: Counts | None, window_s: float, now: float) -> Floor | None:
        if counts is None:
            self._lost_since_s = now if self._lost_since_s is None else self._lost_since_s
            return None
        if counts.ready < self._num_served <= counts.total:
            self._lost_since_s = now if self._lost_since_s is None else self._lost_since_s
            self._hold(window_s, now)
        elif self._lost_since_s is not None:
            self._hold(window_s, now)
            self._lost_since_s = None
        if self._floor is not None and now <= self._until_s and counts.total <= self._floor.num_instances:
            return self._floor
        self._floor, self._num_served = None, counts.ready
        return None

    def _hold(self, window_s: float, now: float) -> None:
        if self._num_served and self._lost_since_s is not None:
            words = f"{self._num_served} served before an outage of {now - self._lost_since_s:.0f} s"
            self._floor, self._until_s = Floor(self._num_served, words), now + window_s
