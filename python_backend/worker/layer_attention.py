"""How one layer of one model attends, as transformers passes it to the attention function."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LayerAttention:
    scaling: float | None = None
    """None: 1 / sqrt(head_dim)."""
