"""Rows of different lengths, padded: which of them go into one forward together. Pure.

One long row among many short ones must not make all of them long; but every further forward has a price, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Shape = tuple[int, ...]
"""The sizes of one entry's ragged dimensions: (tokens,) of a text, (height, width) of an image."""


def split(shapes: Sequence[Shape], forward_cost: float, rows: Sequence[int] | None = None) -> list[list[int]]:
    """Entries by bucket: a list of indices each, ascending; every entry in exactly one.

    Minimises the padded elements plus `forward_cost` (in elements) for each bucket, over all ways to cut the
    entries, sorted by size, into runs. `rows[i]` rows have shape `shapes[i]`; a bucket is padded to the greatest
    size in every dimension. `rows`: one each if not given. O(distinct shapes squared).
    """
    if not shapes:
        return []
    rows = [1] * len(shapes) if rows is None else rows
    ordered = sorted(set(shapes), key=lambda shape: (math.prod(shape), shape))
    num_rows = dict.fromkeys(ordered, 0)
    for shape, count in zip(shapes, rows, strict=True):
        num_rows[shape] += count
    if _waste(ordered, num_rows) <= forward_cost:  # the most that any split can save
        return [list(range(len(shapes)))]
    bucket_of = {
        shape: bucket
        for bucket, run in enumerate(_cheapest_runs(ordered, num_rows, forward_cost))
        for shape in run
    }
    buckets: list[list[int]] = [[] for _ in set(bucket_of.values())]
    for index, shape in enumerate(shapes):
        buckets[bucket_of[shape]].append(index)
    return buckets


def padded_shape(shapes: Sequence[Shape], multiple: int = 1) -> Shape:
    """The greatest size of every dimension, rounded up to a multiple. All shapes have as many dimensions."""
    return tuple(-(-max(sizes) // multiple) * multiple for sizes in zip(*shapes, strict=True))


def _waste(ordered: Sequence[Shape], num_rows: dict[Shape, int]) -> int:
    padded = math.prod(padded_shape(ordered)) if ordered else 0
    return sum((padded - math.prod(shape)) * num_rows[shape] for shape in ordered)


def _cheapest_runs(
    ordered: Sequence[Shape], num_rows: dict[Shape, int], forward_cost: float
) -> list[list[Shape]]:
    """Dynamic programming from the front: cheapest[end] covers the first `end` shapes."""
    cheapest = [0.0]
    first_of_last: list[int] = [0]
    for end in range(1, len(ordered) + 1):
        best, best_first = math.inf, 0
        largest: Shape = ordered[end - 1]
        rows = 0
        for first in range(end - 1, -1, -1):
            largest = padded_shape([largest, ordered[first]])
            rows += num_rows[ordered[first]]
            cost = cheapest[first] + rows * math.prod(largest) + forward_cost
            if cost < best:
                best, best_first = cost, first
        cheapest.append(best)
        first_of_last.append(best_first)
    runs: list[list[Shape]] = []
    end = len(ordered)
    while end:
        first = first_of_last[end]
        runs.append(list(ordered[first:end]))
        end = first
    return runs[::-1]
