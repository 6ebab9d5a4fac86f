"""Who sets a count beside us, told from the counts alone. Pure; one per object.

A person who sets a count once is followed. Somebody who sets it again and again is another controller, and writing
against it makes the count swing for ever (41 scale-outs in 14 minutes in LLMKube#484).
"""

from __future__ import annotations

from dataclasses import dataclass, field

WINDOW_S = 600.0
MAX_FOREIGN = 2
"""Changes by others within WINDOW_S. One more, and there are two writers."""


@dataclass
class Writers:
    """Call `writing` before each write of ours and `saw` with every count that is read."""

    _last: int | None = None
    _ours: int | None = None
    """What a write of ours may have made of it; whether it arrived is not known before it is read."""
    _foreign: list[float] = field(default_factory=list)

    def writing(self, count: int) -> None:
        self._ours = count

    def saw(self, count: int, now: float) -> bool:
        """Was it set by somebody else since the last look?"""
        is_foreign = self._last is not None and count not in (self._last, self._ours)
        if count == self._ours:
            self._ours = None
        self._last = count
        if is_foreign:
            self._foreign.append(now)
        return is_foreign

    def num_foreign(self, now: float) -> int:
        """Changes by others within the last WINDOW_S."""
        self._foreign = [at for at in self._foreign if now - at < WINDOW_S]
        return len(self._foreign)

    def are_two(self, now: float) -> bool:
        return self.num_foreign(now) > MAX_FOREIGN
