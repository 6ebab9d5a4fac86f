"""Which models this node serves, and how one comes or goes while the others serve on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

import msgspec

from contracts.stack import ServedModel
from python_backend.messages import BindModel, ModelBound
from python_backend.node.broker import Broker
from python_backend.node.config import check_floors, check_served
from python_backend.node.errors import ModelNameTaken, NodeError, PoolTooSmall, WorkersKeepDying
from python_backend.node.forkserver import ForkServer
from python_backend.node.quota import ModelQuota
from python_backend.node.residency import Resident
from python_backend.node.weights import Acquired, WeightKeeper

logger = logging.getLogger(__name__)


class ModelHost:
    """One change at a time; each is whole or leaves everything as it was."""

    def __init__(
        self, keeper: WeightKeeper, fork_server: ForkServer, broker: Broker, kv_bytes: int, device: str
    ) -> None:
        self.keeper = keeper
        self.served: dict[str, ServedModel] = {}
        self._fork_server = fork_server
        self._broker = broker
        self._kv_bytes = kv_bytes
        self._device = device
        self._changing = asyncio.Lock()
        self.on_change: Callable[[], None] = lambda: None
        """Called when a model was added or dropped after the start."""

    async def start(self, models: Sequence[ServedModel]) -> None:
        """Load all while the fork server still imports torch, then bind all. Raises NodeError."""
        check_floors(models, self._kv_bytes)
        async with self._changing:
            acquired = {}
            for served in models:
                acquired[served.name] = await self.keeper.acquire(served)
                self.keeper.bind(acquired[served.name].key, served.name)
            for served in models:
                bound = await self._bind(served, acquired[served.name])
                self.served[served.name] = served
                self._broker.bind(bound, ModelQuota.of(served))

    async def serve(self, served: ServedModel, num_spares: int) -> None:
        """Returns when it is bound and so many spares are warm; nothing to do when exactly it serves already.

        Raises ModelInvalid, ModelNameTaken, CheckpointError, WeightsError, BindRefused, PoolTooSmall,
        WorkersKeepDying.
        """
        check_served(served)
        async with self._changing:
            if not self._serves_already(served):
                await self._add(served, num_spares)
                self.on_change()
        try:
            await self._broker.prepare_spares(served.name, num_spares)
        except WorkersKeepDying:
            await self.drop(served.name)
            raise

    async def drop(self, model: str) -> None:
        """Returns when its workers have ended and its skeleton is gone; its weights stay resident.

        Raises ModelUnknown, ModelInUse.
        """
        async with self._changing:
            await self._broker.remove_model(model)
            self.served.pop(model)
            await self._fork_server.unbind(model)
            self.keeper.unbind(model)
            logger.info("model %s is dropped", model)
            self.on_change()

    async def evict(self, key: str) -> Resident:
        """Raises WeightsUnknown, WeightsHeld."""
        async with self._changing:
            return self.keeper.evict(key)

    def _serves_already(self, served: ServedModel) -> bool:
        current = self.served.get(served.name)
        if current is None or current == served:
            return current is not None
        ours, theirs = msgspec.to_builtins(served), msgspec.to_builtins(current)
        changed = ", ".join(
            f"{key} = {theirs[key]!r}, not {ours[key]!r}" for key in ours if ours[key] != theirs[key]
        )
        raise ModelNameTaken(
            f"model {served.name!r} is served with {changed}; drop it first or choose another name"
        )

    async def _add(self, served: ServedModel, num_spares: int) -> None:
        check_floors([*self.served.values(), served], self._kv_bytes)
        acquired = await self.keeper.acquire(served)
        self.keeper.bind(acquired.key, served.name)
        try:
            bound = await self._bind(served, acquired)
        except NodeError:
            self._undo(served.name, acquired)
            raise
        self.served[served.name] = served
        self._broker.add_model(served.name, num_spares)
        self._broker.bind(bound, ModelQuota.of(served))

    def _undo(self, model: str, acquired: Acquired) -> None:
        self.keeper.unbind(model)
        if not acquired.was_resident:
            self.keeper.residency.pin(acquired.key, False)
            self.keeper.evict(acquired.key)

    async def _bind(self, served: ServedModel, acquired: Acquired) -> ModelBound:
        weights = acquired.weights
        message = BindModel(
            model=served.name,
            kind=served.kind,
            config_dir=served.path,
            table_path=str(weights.table_path),
            weights_bytes=weights.num_bytes,
            max_context_tokens=served.max_context_tokens,
            precision=served.precision,
            kv_precision=served.kv_precision,
            device=self._device,
            fingerprint=weights.fingerprint.digest(),
            max_output_tokens=served.max_output_tokens,
        )
        bound = await self._fork_server.bind(message, weights.fd)
        if bound.block_bytes > self._kv_bytes:
            await self._fork_server.unbind(served.name)
            raise PoolTooSmall(
                f"pool of {self._kv_bytes} bytes holds no block of {served.name} ({bound.block_bytes} bytes for"
                f" {bound.block_tokens} tokens); raise pool_bytes"
            )
        logger.info("model %s is bound to %s, %d bytes", served.name, acquired.key, weights.num_bytes)
        return bound
