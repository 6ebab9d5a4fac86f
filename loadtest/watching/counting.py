"""Counters that begin again at 0 with each incarnation, as one that never falls. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable


class Accumulated:
    """Counts since the first look, per group; what a counter had then is not counted."""

    def __init__(self) -> None:
        self._last: dict[Hashable, float] = {}
        self._totals: defaultdict[str, float] = defaultdict(float)
        self._has_looked = False

    def update(self, counters: dict[Hashable, tuple[str, float]]) -> dict[str, float]:
        """`counters`: of each incarnation its group and its count. One that is new, or that fell, began at 0."""
        for incarnation, (group, count) in counters.items():
            before = self._last.get(incarnation, 0.0 if self._has_looked else count)
            self._totals[group] += count - before if count >= before else count
        self._last = {incarnation: count for incarnation, (_, count) in counters.items()}
        self._has_looked = True
        return dict(self._totals)
