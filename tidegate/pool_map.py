"""The KV arena as one row of characters: what lies where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

FREE = "free"
SIGNS = {FREE: "·", "leased": "█", "published": "▓", "cached": "░"}
"""State of an extent (contracts/node.proto) -> its character."""


@dataclass(frozen=True)
class Cell:
    """An equal piece of the arena."""

    state: str
    """Of most of its bytes that are not free; "free" only when all are."""
    model: str


def draw(extents: Sequence[dict[str, Any]], total_bytes: int, num_cells: int) -> list[Cell]:
    """`extents` as NodeStatus has them, in order; no cells for an arena without bytes."""
    if total_bytes <= 0:
        return []
    bytes_in: list[Counter[tuple[str, str]]] = [Counter() for _ in range(num_cells)]
    for extent in extents:
        start, end = extent["offset_bytes"], extent["offset_bytes"] + extent["num_bytes"]
        for index in range(start * num_cells // total_bytes, num_cells):
            low, high = index * total_bytes // num_cells, (index + 1) * total_bytes // num_cells
            if low >= end:
                break
            bytes_in[index][extent["state"], extent["model"]] += max(0, min(end, high) - max(start, low))
    return [_cell(counter) for counter in bytes_in]


def letters(models: Sequence[str]) -> dict[str, str]:
    """A letter for each model: of its name, where it is not taken yet."""
    taken: dict[str, str] = {}
    for model in models:
        candidates = [*model.lower(), *"abcdefghijklmnopqrstuvwxyz"]
        taken[model] = next((c for c in candidates if c.isalpha() and c not in taken.values()), "?")
    return taken


def _cell(counter: Counter[tuple[str, str]]) -> Cell:
    used = +counter  # only what is more than nothing
    if not used:
        return Cell(FREE, "")
    (state, model), _ = max(used.items(), key=lambda item: item[1])
    return Cell(state, model)
