"""Which sets of weights are resident, who uses them, and which to give up for another. Decides; `weights` acts.

A set stays when its last model goes, until the budget needs the room (least recently used first) or an operator
evicts it. Sets that are pinned, or that a model is bound to, are never given up. Time comes in as `now`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from contracts.stack import Precision
from python_backend.node.errors import WeightsHeld, WeightsTooLarge, WeightsUnknown


@dataclass
class Resident:
    key: str
    """"FOLDER-NAME@PRECISION", with "#2" behind it where two folders have one name."""
    folder: Path
    precision: Precision
    num_bytes: int
    last_used: float
    is_pinned: bool = False
    models: set[str] = field(default_factory=set)
    """Bound to it now."""

    @property
    def may_go(self) -> bool:
        return not self.is_pinned and not self.models


class Residency:
    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self._sets: dict[str, Resident] = {}

    def all(self) -> list[Resident]:
        return list(self._sets.values())

    def used_bytes(self) -> int:
        return sum(each.num_bytes for each in self._sets.values())

    def find(self, folder: Path, precision: Precision) -> Resident | None:
        matching = (
            each for each in self._sets.values() if (each.folder, each.precision) == (folder, precision)
        )
        return next(matching, None)

    def get(self, key: str) -> Resident:
        """Raises WeightsUnknown."""
        if key not in self._sets:
            known = ", ".join(self._sets) or "none"
            raise WeightsUnknown(f"no weights {key!r} are resident on this node; resident: {known}")
        return self._sets[key]

    def victims_for(self, num_bytes: int) -> list[str]:
        """Keys to give up, in this order, before `num_bytes` more fit. Nothing changes here.

        Raises WeightsTooLarge with the numbers.
        """
        excess = self.used_bytes() + num_bytes - self.budget_bytes
        victims: list[str] = []
        for each in sorted(self._sets.values(), key=lambda each: each.last_used):
            if excess <= 0:
                break
            if each.may_go:
                victims.append(each.key)
                excess -= each.num_bytes
        if excess > 0:
            raise WeightsTooLarge(self._no_room_text(num_bytes))
        return victims

    def add(self, folder: Path, precision: Precision, num_bytes: int, now: float) -> Resident:
        # A version folder of a batch model says nothing alone.
        name = f"{folder.parent.name}.{folder.name}" if folder.name.isdecimal() else folder.name
        base = f"{name}@{precision}"
        key, number = base, 1
        while key in self._sets:
            number += 1
            key = f"{base}#{number}"
        self._sets[key] = Resident(key, folder, precision, num_bytes, now)
        return self._sets[key]

    def bind(self, key: str, model: str, now: float) -> None:
        """Raises WeightsUnknown."""
        resident = self.get(key)
        resident.models.add(model)
        resident.last_used = now

    def unbind(self, model: str, now: float) -> None:
        """Harmless when it is bound to nothing."""
        for resident in self._sets.values():
            if model in resident.models:
                resident.models.remove(model)
                resident.last_used = now

    def pin(self, key: str, is_pinned: bool) -> Resident:
        """Raises WeightsUnknown."""
        resident = self.get(key)
        resident.is_pinned = is_pinned
        return resident

    def remove(self, key: str) -> Resident:
        """Raises WeightsUnknown, WeightsHeld."""
        resident = self.get(key)
        if resident.models:
            raise WeightsHeld(
                f"weights {key} are in use by {', '.join(sorted(resident.models))};"
                " they can go when no model is bound to them"
            )
        if resident.is_pinned:
            raise WeightsHeld(f"weights {key} are pinned; `tidegate pool pin {key} --off` first")
        return self._sets.pop(key)

    def _no_room_text(self, num_bytes: int) -> str:
        held = [each for each in self._sets.values() if not each.may_go]
        names = ", ".join(f"{each.key} {each.num_bytes}" for each in held) or "none"
        return (
            f"no room for {num_bytes} bytes of weights: the budget is {self.budget_bytes},"
            f" {sum(each.num_bytes for each in held)} of it cannot be evicted ({names});"
            " drop or unpin one, choose a smaller precision, or raise weights_budget_bytes"
        )
