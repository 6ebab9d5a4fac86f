"""Where warming up ends: MSER on batch means, and only where what is cut off differs from what stays."""

from __future__ import annotations

import math

import numpy as np

from loadtest.records import Float


def warm_up_bins(y: Float) -> int | None:
    """How many leading values to cut off, at most half; None when the series never settles in its first half.

    MSER (White 1997): the cut d that makes sum((y[d:] - mean)^2) / (n - d)^2 smallest. Values are bin medians or
    means, which take the place of MSER-5's batches of five. In noise the smallest lies anywhere, so it is moved
    back for as long as what lies between is like what comes after (means within four standard errors). NaN (an
    empty bin) is left out.
    """
    places = np.flatnonzero(np.isfinite(y))
    values = y[places]
    n = len(values)
    if n < 4:
        return 0
    counts = np.arange(n, 0, -1)
    sums = np.cumsum(values[::-1])[::-1]
    squares = np.cumsum((values[::-1] - values.mean()) ** 2)[::-1]
    centred = squares - (sums - counts * values.mean()) ** 2 / counts
    # At most two thirds are looked at, so that a smallest beyond the half is seen as "not settled".
    scores = (centred / counts.astype(float) ** 2)[: max(2, 2 * n // 3)]
    cut = int(np.argmin(scores))
    tail = values[cut:]
    cut = next((earlier for earlier in range(cut) if not _differs(values[earlier:cut], tail)), cut)
    if cut == 0:
        return 0
    return None if cut > n // 2 else int(places[cut])


def _differs(head: Float, tail: Float) -> bool:
    spread = float(tail.std(ddof=1))
    return abs(float(head.mean() - tail.mean())) > 4 * spread / math.sqrt(len(head)) + 1e-12
