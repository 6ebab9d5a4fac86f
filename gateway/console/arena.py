"""The KV arena as a grid of equal cells: whose bytes lie where. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

NUM_CELLS = 768
STATES = ("leased", "published", "cached")
"""As contracts/node.proto has them."""


class Extent(Protocol):
    """contracts/node.proto's."""

    offset_bytes: int
    num_bytes: int
    model: str
    state: str
    tenant: str


@dataclass(frozen=True, slots=True)
class Cell:
    """Who has most of its bytes that are not free."""

    model: str
    state: str
    tenant: str
    used_share: float


def cells(extents: Sequence[Extent], total_bytes: int, num_cells: int = NUM_CELLS) -> list[Cell | None]:
    """None: all free. `extents` in order of their offset, as NodeStatus has them."""
    if total_bytes <= 0:
        return []
    bytes_in: list[Counter[tuple[str, str, str]]] = [Counter() for _ in range(num_cells)]
    for extent in extents:
        start, end = extent.offset_bytes, min(extent.offset_bytes + extent.num_bytes, total_bytes)
        for index in range(start * num_cells // total_bytes, num_cells):
            low, high = index * total_bytes // num_cells, (index + 1) * total_bytes // num_cells
            if low >= end:
                break
            part = min(end, high) - max(start, low)
            if part > 0:
                bytes_in[index][extent.model, extent.state, extent.tenant] += part
    return [_cell(found, total_bytes / num_cells) for found in bytes_in]


def _cell(found: Counter[tuple[str, str, str]], cell_bytes: float) -> Cell | None:
    if not found:
        return None
    (model, state, tenant), _ = max(found.items(), key=lambda item: item[1])
    return Cell(model, state, tenant, min(1.0, sum(found.values()) / cell_bytes))


def as_runs(found: Sequence[Cell | None]) -> dict[str, Any]:
    """Cells as indexes into a list of what occurs, -1 free: what a page can draw, in a few kilobytes."""
    kinds: dict[tuple[str, str, str], int] = {}
    indexes = []
    for cell in found:
        if cell is None:
            indexes.append(-1)
            continue
        key = (cell.model, cell.state, cell.tenant)
        indexes.append(kinds.setdefault(key, len(kinds)))
    return {
        "cells": indexes,
        "kinds": [{"model": model, "state": state, "tenant": tenant} for model, state, tenant in kinds],
    }
