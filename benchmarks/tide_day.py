"""The compressed day that the tide bench sends: valleys at one rate, and waves that rise out of them. Pure."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

PEAK_SHARE = 0.9
"""The peak is where the rate is at least so much of the day's highest."""


@dataclass(frozen=True)
class Stage:
    """`seconds` at the valley's rate, or, with a `crest`, a smooth wave up to `crest` times that rate and back."""

    seconds: float
    crest: float = 1.0


@dataclass(frozen=True)
class Day:
    """Requests per second over time. `valley_per_s`: the rate that the stages are multiples of."""

    valley_per_s: float
    stages: tuple[Stage, ...]

    @property
    def seconds(self) -> float:
        return sum(stage.seconds for stage in self.stages)

    @property
    def highest_per_s(self) -> float:
        return self.valley_per_s * max(stage.crest for stage in self.stages)

    def rate_per_s(self, at_s: float) -> float:
        """A raised cosine within a wave, so that the load has no steps, as real tides have none."""
        stage, since_s = self._stage_at(at_s)
        rise = (1 - math.cos(2 * math.pi * since_s / stage.seconds)) / 2
        return self.valley_per_s * (1 + (stage.crest - 1) * rise)

    def is_valley(self, at_s: float) -> bool:
        return self._stage_at(at_s)[0].crest == 1.0

    def is_peak(self, at_s: float) -> bool:
        return self.rate_per_s(at_s) >= PEAK_SHARE * self.highest_per_s

    def arrivals(self, rng: random.Random) -> list[float]:
        """Poisson at the rate of each moment, ascending, in seconds from the day's beginning."""
        times, now = [], 0.0
        while (now := now + rng.expovariate(self.highest_per_s)) < self.seconds:
            if rng.random() < self.rate_per_s(now) / self.highest_per_s:
                times.append(now)
        return times

    def describe(self) -> str:
        parts = [
            f"{stage.seconds:g} s valley"
            if stage.crest == 1
            else f"{stage.seconds:g} s wave ×{stage.crest:g}"
            for stage in self.stages
        ]
        return (
            f"{self.seconds:g} s: {', '.join(parts)}; {self.valley_per_s:.1f} requests/s in the valley, "
            f"{self.highest_per_s:.1f} at the peak"
        )

    def _stage_at(self, at_s: float) -> tuple[Stage, float]:
        """The stage, and the seconds since it began; before and after the day its ends go on."""
        since_s = at_s
        for stage in self.stages:
            if since_s < stage.seconds:
                return stage, max(0.0, since_s)
            since_s -= stage.seconds
        return self.stages[-1], self.stages[-1].seconds
