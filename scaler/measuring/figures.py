"""What one look found, and figures made of many looks. Values only.

How far they look back: 15 s for shares of time, short enough to follow a tide and long enough to hold whole
executions (longer when those take seconds); 5 s for the queue, which is what users feel: a mean over five looks
takes away the saw that batches make, and still shows a jump from 0 to 100 as 20 at the first look after it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from scaler.measuring.engine_figures import EngineFigures


@dataclass(frozen=True)
class Spans:
    """How far back the figures look."""

    utilization_s: float = 15.0
    queue_s: float = 5.0
    longest_s: float = 120.0
    """Of the utilisation, when `utilization_s` holds less than `num_executions` executions of one instance."""
    num_executions: int = 4


@dataclass(frozen=True)
class Look:
    """The answers of one tick. None: that source did not answer, is not there, or does not know the model."""

    at_s: float
    counters: Mapping[str, float] | None = None
    pending: float | None = None
    engine: EngineFigures | None = None
    gpu_utilization: float | None = None
    num_ready: int | None = None


class Figure(NamedTuple):
    """A value, and the look that it is as old as. None: not known. NaN: a ratio of nothing."""

    value: float | None
    at_s: float = 0.0

    def over(self, num: int) -> Figure:
        """A share of so many instances, 1 at most: those of before a scale-in may have done more."""
        if self.value is None:
            return self
        return Figure(min(1.0, self.value / num) if num else math.nan, self.at_s)


UNKNOWN = Figure(None)
