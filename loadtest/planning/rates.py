"""A rate over time as straight lines between knots, with its integral and the integral's inverse, both exact."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.float64]


@dataclass(frozen=True)
class RateCurve:
    """Requests per second over time. Two knots at one moment are a step."""

    t_s: Float
    """Shape [k], from 0, never falling."""
    rate_per_s: Float
    """Shape [k], from 0 on."""

    @classmethod
    def through(cls, knots: Sequence[tuple[float, float]]) -> RateCurve:
        table = np.array(knots, dtype=np.float64)
        return cls(table[:, 0], table[:, 1])

    @property
    def duration_s(self) -> float:
        return float(self.t_s[-1])

    @property
    def total(self) -> float:
        """Requests that are expected in all."""
        return float(self._expected_at_knots()[-1])

    def rate_at(self, t_s: Float) -> Float:
        """At a step the later rate."""
        at = np.clip(np.searchsorted(self.t_s, t_s, side="right") - 1, 0, len(self.t_s) - 2)
        return np.asarray(self.rate_per_s[at] + self._slopes()[at] * (t_s - self.t_s[at]))

    def expected_until(self, t_s: Float) -> Float:
        """The integral from 0."""
        at = np.clip(np.searchsorted(self.t_s, t_s, side="right") - 1, 0, len(self.t_s) - 2)
        into = t_s - self.t_s[at]
        return np.asarray(
            self._expected_at_knots()[at] + self.rate_per_s[at] * into + self._slopes()[at] * into**2 / 2
        )

    def moment_of(self, expected: Float) -> Float:
        """When so many requests are expected to have come; `expected` from 0 to below `total`.

        Solves r x + s x^2 / 2 = rest within a line, in the form that stays exact as the slope goes to 0.
        """
        before = self._expected_at_knots()
        at = np.clip(np.searchsorted(before, expected, side="right") - 1, 0, len(self.t_s) - 2)
        rest = expected - before[at]
        rate, slope = self.rate_per_s[at], self._slopes()[at]
        root = rate + np.sqrt(np.maximum(rate**2 + 2 * slope * rest, 0.0))
        into = np.divide(2 * rest, root, out=np.zeros_like(rest), where=root > 0)
        return np.asarray(np.minimum(self.t_s[at] + into, self.t_s[at + 1]))

    def _slopes(self) -> Float:
        widths = np.diff(self.t_s)
        return np.divide(np.diff(self.rate_per_s), widths, out=np.zeros_like(widths), where=widths > 0)

    def _expected_at_knots(self) -> Float:
        means = (self.rate_per_s[:-1] + self.rate_per_s[1:]) / 2
        return np.concatenate(([0.0], np.cumsum(means * np.diff(self.t_s))))
