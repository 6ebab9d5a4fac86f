"""Requests that the gateway holds for a model without instances, as it last said; it has to repeat itself."""

from __future__ import annotations

from collections.abc import Callable

VALID_S = 5.0
"""The gateway repeats itself once a second; one that died, or whose clients left, does not."""


class Wakes:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._waiting: dict[str, tuple[float, int]] = {}

    def said(self, model: str, num_waiting: int) -> bool:
        """Is it the first word of those that wait?"""
        is_first = num_waiting > 0 and not self.num_waiting(model)
        self._waiting[model] = (self._clock(), num_waiting)
        return is_first

    def num_waiting(self, model: str) -> int:
        said_s, num = self._waiting.get(model, (0.0, 0))
        return num if self._clock() - said_s <= VALID_S else 0
