"""How many CPU threads a worker may use: the cores are a budget that busy workers share. Pure.

Measured at batch 16 on two cores: one worker with two threads 88 tokens/s, two workers with two threads each
33, two with one each 114. Too many threads cost more than too few, so the count falls at once and rises late.
"""

from __future__ import annotations

from dataclasses import dataclass

RAISE_AFTER_S = 0.5
"""The others must have been idle this long: a stream's gap between two requests must not flip the count."""


@dataclass
class ThreadBudget:
    num_cpus: int
    current: int = 1
    _better_since_s: float | None = None

    def update(self, num_busy: int, now_s: float) -> int:
        """Threads to use from now on, with `num_busy` workers busy on this node, this one included."""
        wanted = max(1, self.num_cpus // max(1, num_busy))
        if wanted <= self.current:
            self.current, self._better_since_s = wanted, None
        elif self._better_since_s is None:
            self._better_since_s = now_s
        elif now_s - self._better_since_s >= RAISE_AFTER_S:
            self.current, self._better_since_s = wanted, None
        return self.current
