"""The weight sets of this node: loaded into the arena, shared, given up by the rules of `residency`.

Calls that load or evict wait for one another (`hosting` holds its lock): between a plan and its deed nothing moves.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from pathlib import Path

from contracts.stack import ServedModel
from python_backend.node.arena import Arena, WeightSet
from python_backend.node.errors import WeightsDiffer
from python_backend.node.loading import fingerprint_now, plan_load
from python_backend.node.residency import Residency, Resident

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Acquired:
    key: str
    weights: WeightSet
    was_resident: bool


class WeightKeeper:
    def __init__(self, arena: Arena, residency: Residency, run_dir: Path) -> None:
        self.residency = residency
        self._arena = arena
        self._run_dir = run_dir
        self._loaded: dict[str, WeightSet] = {}

    async def acquire(self, served: ServedModel) -> Acquired:
        """The set that `served` needs, loaded if it is not there; pinned if it says so. Not bound yet.

        Raises CheckpointError, WeightsTooLarge, WeightsDiffer.
        """
        folder = await asyncio.to_thread(Path(served.path).resolve)
        resident = self.residency.find(folder, served.precision)
        was_resident = resident is not None
        if resident is None:
            resident = await self._load(folder, served)
        else:
            await self._check_unchanged(resident)
        if served.pinned:
            resident.is_pinned = True
        return Acquired(resident.key, self._loaded[resident.key], was_resident)

    def bind(self, key: str, model: str) -> None:
        self.residency.bind(key, model, time.time())

    def unbind(self, model: str) -> None:
        self.residency.unbind(model, time.time())

    def evict(self, key: str) -> Resident:
        """Raises WeightsUnknown, WeightsHeld."""
        resident = self.residency.remove(key)
        self._arena.release(self._loaded.pop(key))
        logger.info("weights %s evicted, %d bytes", key, resident.num_bytes)
        return resident

    def digest(self, key: str) -> str:
        """ "" when there is no such set."""
        return self._loaded[key].fingerprint.digest() if key in self._loaded else ""

    def of_model(self, model: str) -> Resident | None:
        return next((each for each in self.residency.all() if model in each.models), None)

    async def _load(self, folder: Path, served: ServedModel) -> Resident:
        plan = await asyncio.to_thread(plan_load, folder, served.precision)
        for key in self.residency.victims_for(plan.layout.num_bytes):
            self.evict(key)
        weights = await asyncio.to_thread(self._arena.load_weights, folder, served.precision, self._run_dir)
        resident = self.residency.add(folder, served.precision, weights.num_bytes, time.time())
        self._loaded[resident.key] = weights
        return resident

    async def _check_unchanged(self, resident: Resident) -> None:
        loaded = self._loaded[resident.key]
        now = await asyncio.to_thread(fingerprint_now, resident.folder, loaded.fingerprint, loaded.stamps)
        if differences := now.differences(loaded.fingerprint):
            users = ", ".join(sorted(resident.models)) or "no model"
            raise WeightsDiffer(
                f"{resident.folder} has changed since {resident.key} was loaded (in use by {users}):"
                f" {'; '.join(differences)}; restore it, or drop the models and"
                f" `tidegate pool evict {resident.key}`"
            )
