"""What the loop acts on: a Triton with its node, a foreign Triton, a Kubernetes scale subresource, or nobody.

Deciding is done by then. A target makes the count true and says how it went.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from scaler.deciding.observation import Counts


@dataclass(frozen=True)
class ScaleResult:
    """One change that was carried out, or found to be true already."""

    model: str
    before: int
    after: int
    seconds: float
    """From the call to all new instances serving (out), or to the others gone, drain included (in)."""
    in_place: bool | None = True
    """False: instances that were to stay were restarted. None: nothing here can tell."""
    detail: str = ""
    """In words: "+chat-3 +chat-4", "-embed-1"."""


@dataclass(frozen=True)
class Limits:
    """What a model's policy says of acting on it."""

    max_instances: int = 8
    drain_timeout_s: float = 60.0
    start_deadline_s: float = 300.0
    longest_stream_s: float | None = None
    """Of a decoupled model that is not of our node: no answer takes longer. None: unknown, so never scaled in."""


class Target(Protocol):
    """Keeps no wish: after a crash the world is as far as the last call got, and `counts` tells how far."""

    async def counts(self, model: str) -> Counts | None:
        """What is there now; cheap, asked for every tick, changes nothing.

        0 for a model that is known and unloaded. None: it cannot be said now (nobody answers), which is not 0.
        `starting` are instances that were asked for, here or by another call, and do not serve yet. A start that
        was given up is no longer counted.
        """
        ...

    async def scale(self, model: str, wanted: int, reason: str) -> ScaleResult:
        """Make it `wanted` instances. `reason` goes into logs and events, nothing depends on it.

        Returns when the last new instance serves, or the last one that goes is gone; asking for what is there
        changes nothing. Never fails a request: who goes is drained first, within the model's drain timeout, and
        serves on when that passes. Raises `scaler.errors.ScaleError`, and then the count is what it was unless
        the text says otherwise.

        Cancel it to take a scale-in back: during the drain the victims serve on at once. What was sent to a
        server is not taken back; the cancel is heeded when the server has done it. Call it once at a time per
        model; another call meanwhile raises `Busy`.
        """
        ...
