"""Advice only: says what it would do, and does nothing.

The counts stay the real ones. A decision rests on load that real instances carry, so after an imagined scale-out
its figures would be those of another fleet; that question is for `tidegate simulate`. What would be there is kept
apart, in `imagined`. KEDA acts on what it is told, so a dry run must serve no external scaler.
"""

from __future__ import annotations

from collections.abc import Callable, Container

from scaler.acting.target import ScaleResult, Target
from scaler.deciding.observation import Counts
from scaler.errors import CountsUnknown


class DryRun:
    """A Target around the real one. `models`: those that are only advised on; None is all."""

    def __init__(
        self, target: Target, *, say: Callable[[str], None], models: Container[str] | None = None
    ) -> None:
        self._target = target
        self._say = say
        self._models = models
        self.imagined: dict[str, int] = {}
        """By model: the count that the last advice would have made."""

    async def counts(self, model: str) -> Counts | None:
        return await self._target.counts(model)

    async def scale(self, model: str, wanted: int, reason: str) -> ScaleResult:
        if self._models is not None and model not in self._models:
            return await self._target.scale(model, wanted, reason)
        counts = await self._target.counts(model)
        if counts is None:
            raise CountsUnknown(f"dry run: {model!r} cannot be counted now, so nothing can be advised")
        if self.imagined.get(model) != wanted:
            self._say(f"dry run: would scale {reason}")
        self.imagined[model] = wanted
        detail = f"dry run: would be {wanted}, nothing was changed"
        return ScaleResult(model, counts.total, counts.total, 0.0, in_place=None, detail=detail)
