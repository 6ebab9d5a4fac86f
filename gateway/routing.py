"""Where a call goes: which model of its service, and why. Values and pure rules only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """What was chosen for one call."""

    model: str
    """Triton's model."""
    version_name: str
    """The routes' name of it."""
    why: str
    """"split 5 %", "long context: 5,012 > 4,096 tokens", "tenant acme", "degraded: saturated", "only version"."""
    max_output_tokens: int | None = None
    """A degraded answer may have to be shorter."""
    shadow: str | None = None
    """A model that gets a copy of the call; its answer is thrown away."""
