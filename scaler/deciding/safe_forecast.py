"""A forecaster that may fail: it only ever raises a floor, so without it the scaler works on."""

from __future__ import annotations

from typing import Protocol

from scaler.deciding.decision import Floor
from scaler.deciding.policy import Forecast, ModelPolicy


class Forecasting(Protocol):
    """What the loop needs of `scaler.deciding.forecast.Forecaster`."""

    def observe(self, at_s: float, busy: float) -> None: ...
    def floor(self, now: float, lead_s: float, policy: ModelPolicy) -> Floor | None: ...
    def status(self) -> str: ...


class SafeForecast:
    """Never raises; `status` says what ails it."""

    def __init__(self, policy: Forecast, forecaster: Forecasting) -> None:
        self.policy = policy
        self._forecaster = forecaster
        self._trouble = ""

    def observe(self, at_s: float, busy: float) -> None:
        try:
            self._forecaster.observe(at_s, busy)
        except Exception as exc:
            self._trouble = f"off: {type(exc).__name__}: {exc}"

    def floor(self, now: float, lead_s: float, policy: ModelPolicy) -> Floor | None:
        try:
            floor = self._forecaster.floor(now, lead_s, policy)
        except Exception as exc:
            self._trouble = f"off: {type(exc).__name__}: {exc}"
            return None
        self._trouble = ""
        return floor

    def status(self) -> str:
        return self._trouble or self._forecaster.status()
