"""Looks one lead time ahead, so that instances are there when the load is. It only ever raises the count.

Two models learn the demand bin by bin: Holt's trend, and Holt-Winters with the season of a day (river's:
microseconds a value, never refitted). Each is checked against what came: what it had said one lead before,
beside what the smoothed level had been then. Only a model whose squared error is clearly the smaller is used;
otherwise forecasting is off until that changes, and `status` says why.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from river import time_series

from scaler.deciding.decision import Floor
from scaler.deciding.policy import Forecast, ModelPolicy
from scaler.deciding.pressure import ceil_count

MIN_CHECKS = 30
"""Forecasts that must have come due before one is trusted."""
MEMORY_CHECKS = 1440
"""Errors are averaged over about so many, a day of minutes: a morning's rush counts until the next one."""
BETTER = 0.95
"""A model's error must be at most so much of the level's, or chance would switch it on."""
MAX_OVER_HIGHEST = 1.25
"""A trend is not followed beyond this much of the highest demand of the last season."""


class _Seasonal(time_series.HoltWinters):  # type: ignore[misc]  # river is untyped
    """river (0.23) begins an additive season with ratios to the level where differences belong, and takes days to
    unlearn them."""

    def learn_one(self, y: float, x: None = None) -> None:
        was_initialized = self._initialized
        super().learn_one(y, x)
        if self._initialized and not was_initialized:
            self.season.clear()
            self.season.extend(value - self.level[-1] for value in self._first_values)


@dataclass
class _Candidate:
    """One model with what it has said and how wrong it was."""

    name: str
    model: Any
    """One of river's `time_series` forecasters."""
    said: deque[tuple[int, float]] = field(default_factory=deque)
    """(bin it was about, value), the earliest first."""
    squared_error: float = 0.0
    num_checks: int = 0

    def learn(self, index: int, value: float, num_ahead: int) -> None:
        while self.said and self.said[0][0] <= index:
            about, said = self.said.popleft()
            if about == index:
                self._check((said - value) ** 2)
        self.model.learn_one(value)
        if (ahead := self.forecast(num_ahead)) and (not self.said or self.said[-1][0] < index + num_ahead):
            self.said.append((index + num_ahead, ahead[-1]))

    def _check(self, squared: float) -> None:
        self.num_checks += 1
        weight = 1 / min(self.num_checks, MEMORY_CHECKS)
        self.squared_error += weight * (squared - self.squared_error)

    def forecast(self, num_ahead: int) -> list[float]:
        """Empty while it has not learned a whole season."""
        try:
            values: list[float] = self.model.forecast(num_ahead)
        except (ValueError, IndexError, TypeError, AttributeError):
            return []
        return values

    @property
    def error(self) -> float:
        return math.sqrt(self.squared_error)


class Forecaster:
    """One model's demand in busy instances. Feed it with `observe`; not known is simply not fed."""

    def __init__(self, settings: Forecast) -> None:
        self._settings = settings
        self._num_ahead = 1
        self._begin()

    def _begin(self) -> None:
        num_bins = max(2, round(self._settings.season_s / self._settings.bin_s))
        self._level = _Candidate("level", time_series.HoltWinters(alpha=0.3))
        self._candidates = [
            _Candidate("season", _Seasonal(alpha=0.3, beta=0.01, gamma=0.1, seasonality=num_bins)),
            _Candidate("trend", time_series.HoltWinters(alpha=0.3, beta=0.02)),
        ]
        self._num_bins = num_bins
        self._index: int | None = None
        self._sum, self._num = 0.0, 0
        self._last = 0.0
        self._highest = 0.0

    def observe(self, at_s: float, busy: float) -> None:
        """Bins that were missed in between are taken as the last one was; after a whole season of silence all that
        was learned is forgotten."""
        index = int(at_s // self._settings.bin_s)
        if self._index is None:
            self._index = index
        if index != self._index:
            if not 0 < index - self._index <= self._num_bins:
                self._begin()
            else:
                for missed in range(self._index, index):
                    self._close(missed)
            self._index = index
        self._sum += busy
        self._num += 1

    def _close(self, index: int) -> None:
        value = self._sum / self._num if self._num else self._last
        self._sum, self._num, self._last = 0.0, 0, value
        self._highest = max(value, self._highest * (1 - 1 / self._num_bins))
        for candidate in (self._level, *self._candidates):
            candidate.learn(index, value, self._num_ahead)

    def floor(self, now: float, lead_s: float, policy: ModelPolicy) -> Floor | None:
        """What the highest demand until one lead from now needs; None when off, or nothing is known yet."""
        self._num_ahead = 1 + math.ceil(
            lead_s / self._settings.bin_s
        )  # the bin that is open now is the first
        best = self._trusted()
        if best is None:
            return None
        ahead = best.forecast(self._num_ahead)
        highest = min(max(ahead, default=0.0), MAX_OVER_HIGHEST * self._highest)
        if highest <= 0:
            return None
        limit = policy.scale_out.utilization or policy.target_utilization
        words = f"forecast {highest:.2f} busy within {lead_s:g} s ({best.name})"
        return Floor(ceil_count(highest / limit), words)

    def _trusted(self) -> _Candidate | None:
        if not self._settings.enabled:
            return None
        ready = [item for item in self._candidates if item.num_checks >= MIN_CHECKS]
        best = min(ready, key=lambda item: item.squared_error, default=None)
        if best is None or best.error > BETTER * self._level.error:
            return None
        return best

    def status(self) -> str:
        """ "on (season): error 0.31 busy one lead ahead, 0.45 without it", or "off: ..." with the reason."""
        if not self._settings.enabled:
            return "off: disabled by the policy"
        best = self._trusted()
        if best is not None:
            without = f"{self._level.error:.2f} without it"
            return f"on ({best.name}): error {best.error:.2f} busy one lead ahead, {without}"
        checked = [item for item in self._candidates if item.num_checks >= MIN_CHECKS]
        if not checked:
            num = max(item.num_checks for item in self._candidates)
            return f"off: {num} of {MIN_CHECKS} forecasts have come due"
        errors = ", ".join(f"{item.name} {item.error:.2f}" for item in checked)
        return (
            f"off: its backtest is not clearly better ({errors} against {self._level.error:.2f} without it)"
        )
