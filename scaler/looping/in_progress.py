"""What a change that runs means for the counts that the next decision sees. Pure."""

from __future__ import annotations

from dataclasses import replace

from scaler.deciding.observation import Counts
from scaler.looping.views import Change


def merged(counts: Counts, change: Change | None) -> Counts:
    """`counts` with what was asked for and does not show yet: instances that come are starting, and those that are
    to go are draining, whether or not their drain has begun (aibrix#2670)."""
    if change is None:
        return counts
    if change.is_out:
        return replace(counts, starting=max(counts.starting, change.num_wanted - counts.ready))
    num_going = max(0, counts.ready - change.num_wanted)
    return replace(counts, ready=counts.ready - num_going, draining=max(counts.draining, num_going))


class Starts:
    """Instances that are being waited for: since when, and how many of them have been given up."""

    def __init__(self) -> None:
        self._since_s: float | None = None
        self._num_ready = 0
        self._num_asked = 0
        self._num_given_up = 0

    def counted(self, counts: Counts, deadline_s: float, now: float) -> tuple[Counts, int]:
        """`counts` without those that are given up, and how many were given up just now.

        The deadline begins anew with each instance that gets ready and each that is asked for beside it.
        """
        self._num_given_up = min(self._num_given_up, counts.starting)
        num_waited_for = counts.starting - self._num_given_up
        if not num_waited_for:
            self._since_s = None
        elif self._since_s is None or counts.ready > self._num_ready or counts.total > self._num_asked:
            self._since_s = now
        self._num_ready, self._num_asked = counts.ready, counts.total
        num_late = 0
        if self._since_s is not None and now - self._since_s > deadline_s:
            num_late, self._num_given_up, self._since_s = num_waited_for, counts.starting, None
        return replace(counts, starting=counts.starting - self._num_given_up), num_late
