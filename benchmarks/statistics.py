"""Small figures over samples."""

from __future__ import annotations

from collections.abc import Sequence


def percentile(samples: Sequence[float], percent: float) -> float:
    """Nearest-rank percentile. Raises ValueError without samples: a figure that was not measured is absent."""
    if not samples:
        raise ValueError("no samples")
    ordered = sorted(samples)
    rank = max(1, -(-len(ordered) * percent // 100))
    return ordered[int(rank) - 1]


def median(samples: Sequence[float]) -> float:
    return percentile(samples, 50)
