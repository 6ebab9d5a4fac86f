"""How long instances took to start: the lead that a decision has to have on the load."""

from __future__ import annotations

import math
from collections import deque

from scaler.deciding.policy import ModelPolicy

NUM_KEPT = 20
HIGH_SHARE = 0.95
UNKNOWN_LEAD_S = 10.0
"""Before the first start was measured. Twice a slow stub's start; a scale-out corrects it within a day."""


class StartTimes:
    """The last starts of each model, from the decision to the instance serving."""

    def __init__(self) -> None:
        self._seconds: dict[str, deque[float]] = {}

    def started(self, model: str, seconds: float) -> None:
        self._seconds.setdefault(model, deque(maxlen=NUM_KEPT)).append(seconds)

    def lead_s(self, model: str, policy: ModelPolicy) -> float:
        """The policy's own, else the 95th percentile of the last 20 starts (the slowest one of few)."""
        if policy.lead_time_s is not None:
            return policy.lead_time_s
        ordered = sorted(self._seconds.get(model, ()))
        if not ordered:
            return UNKNOWN_LEAD_S
        return ordered[math.ceil(HIGH_SHARE * len(ordered)) - 1]
