"""To zero and back, for models of our node: drain all, unload; load with as many instances as are wanted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from tritonclient.grpc.model_config_pb2 import ModelConfig

from scaler.acting import draining, resting, starting
from scaler.acting import instance_update as update
from scaler.acting.actuator import InstanceChange, Node, Patience, prepare_spares
from scaler.acting.draining import Say
from scaler.acting.model_lock import ModelLock
from scaler.acting.resting import RestingConfigs
from scaler.acting.starting import EndStubs
from scaler.errors import InUse, ModelUnknown, UpdateTimeout
from scaler.finishing import to_its_end

POLL_S = 0.01


class Triton(resting.Triton, starting.Triton, Protocol):
    """What is needed of Triton; `TritonClient` is one."""

    async def config(self, model: str) -> ModelConfig: ...
    async def load_from_repository(self, model: str, timeout_s: float) -> None: ...


class RestActuator:
    """Holds the model's lock while it works, as the Actuator does."""

    def __init__(
        self, triton: Triton, node: Node, run_dir: Path, *, say: Say, end_stubs: EndStubs | None = None
    ) -> None:
        self._triton = triton
        self._node = node
        self._run_dir = run_dir
        self._say = say
        self._end_stubs = end_stubs
        self._configs = RestingConfigs(run_dir / "resting")
        self._starting: dict[str, int] = {}

    def num_starting(self, model: str) -> int:
        """Instances that a call in progress brings."""
        return self._starting.get(model, 0)

    def forget(self, model: str) -> None:
        """It serves, so what it rested with last time is of no use any more."""
        self._configs.forget(model)

    async def put_to_rest(self, model: str, patience: Patience) -> InstanceChange:
        """Raises InUse when a request comes during the drain, DrainTimeout when one does not end; all serve on.

        A cancel during the drain does the same; once the unload is sent, it waits for it.
        """
        started_s = time.monotonic()
        async with ModelLock(self._run_dir, model, patience.lock_s) as lock:
            config = await self._triton.config(model)
            names = update.instance_names(config)
            before = await self._num_landed(model)
            self._say(f"{model}: draining {', '.join(names)}, to rest")
            await draining.drain(self._node, model, names, patience.drain_s, self._say)
            if landed := await self._num_landed(model) - before:
                await draining.resume(self._node, model, names, self._say)
                raise InUse(
                    f"model {model!r}: {landed} requests came during the drain; all instances serve on"
                )
            lock.remember(max(update.number_of(model, name) for name in names))
            self._configs.remember(config)
            await to_its_end(resting.unload(self._triton, model, patience.update_s))
        return _change(model, started_s, before=names, after=())

    async def _num_landed(self, model: str) -> int:
        return sum(load.landed for load in await self._node.loads(model))

    async def bring_back(self, model: str, num_instances: int, patience: Patience) -> InstanceChange:
        """With the config that it rested with, and new names. A model that never rested comes as its repository
        says, which may be another number of instances."""
        started_s = time.monotonic()
        self._starting[model] = num_instances
        try:
            async with ModelLock(self._run_dir, model, patience.lock_s) as lock:
                self._say(f"{model}: loading {num_instances} instances")
                await prepare_spares(self._node, model, num_instances, patience.spares_s, self._say)
                names = await to_its_end(self._load(model, num_instances, lock, patience))
                await self._wait_attached(model, names, patience)
                self._configs.forget(model)
        finally:
            del self._starting[model]
        return _change(model, started_s, before=(), after=names)

    async def _load(self, model: str, num: int, lock: ModelLock, patience: Patience) -> Sequence[str]:
        config = self._configs.recall(model)
        if config is None:
            await self._triton.load_from_repository(model, patience.start_s)
            return update.instance_names(await self._triton.config(model))
        seen = [load.instance for load in await self._node.loads(model)]
        names = update.next_ids(model, [*seen, *update.instance_names(config)], lock.highest_id, num)
        lock.remember(update.number_of(model, names[-1]))
        await starting.load(
            self._triton,
            model,
            update.override_json(config, update.with_instances(config, names)),
            names,
            start_s=patience.start_s,
            update_s=patience.update_s,
            end_stubs=self._end_stubs,
            say=self._say,
        )
        return names

    async def _wait_attached(self, model: str, names: Sequence[str], patience: Patience) -> None:
        deadline_s = time.monotonic() + patience.start_s
        while True:
            attached = {load.instance for load in await self._node.loads(model)}
            if attached >= set(names) and await self._is_served(model):
                return
            if time.monotonic() > deadline_s:
                raise UpdateTimeout(
                    f"model {model!r}: loaded, and after {patience.start_s:g} s {sorted(attached)} are attached, "
                    f"wanted {list(names)}; see `tidegate status` and RUN_DIR/logs"
                )
            await asyncio.sleep(POLL_S)

    async def _is_served(self, model: str) -> bool:
        try:
            await self._triton.config(model)
        except ModelUnknown:
            return False
        return True


def _change(model: str, started_s: float, *, before: Sequence[str], after: Sequence[str]) -> InstanceChange:
    return InstanceChange(
        model=model,
        before=tuple(before),
        after=tuple(after),
        added=tuple(after),
        removed=tuple(before),
        ready_ms=(time.monotonic() - started_s) * 1000,
        in_place=True,
    )
