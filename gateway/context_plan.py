"""Which turns of a conversation that is too long stay. Pure; costs are in tokens."""

from __future__ import annotations

from collections.abc import Sequence

STEPS = 4
"""What is left out grows in steps of a quarter of the room. Between two steps a growing session begins with the
same tokens each time: the engine has computed them already, and a summary of what is missing holds."""


def first_kept(costs: Sequence[int], room: int) -> int:
    """The newest turns stay: the index of the oldest of them. The last one always stays, whether it fits or not."""
    too_many = sum(costs) - room
    if too_many <= 0:
        return 0
    step = max(1, room // STEPS)
    wanted = -(-too_many // step) * step
    dropped = 0
    for index, cost in enumerate(costs[:-1]):
        if dropped >= wanted:
            return index
        dropped += cost
    return len(costs) - 1


def newest_that_fit(costs: Sequence[int], room: int, most: int) -> int:
    """The index of the first of at most `most` newest turns that fit. The last one always stays."""
    first, left = len(costs) - 1, room - costs[-1]
    while first > 0 and len(costs) - first < most and costs[first - 1] <= left:
        first -= 1
        left -= costs[first]
    return first


def most_relevant(costs: Sequence[int], scores: Sequence[float], room: int, cost_of_gap: int) -> list[int]:
    """Indices in order of those with the highest scores that fit together; each may leave a gap behind it."""
    kept: list[int] = []
    for index in sorted(range(len(costs)), key=lambda at: (-scores[at], -at)):
        cost = costs[index] + cost_of_gap
        if cost <= room:
            kept.append(index)
            room -= cost
    return sorted(kept)
