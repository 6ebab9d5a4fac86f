"""Models of our node as a target: one group per instance, each with a stub that is attached to the node."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from tritonclient.grpc.model_config_pb2 import ModelConfig

from scaler.acting import actuator, draining, rest_actuator, resting
from scaler.acting.actuator import Actuator, InstanceChange, Patience
from scaler.acting.draining import Say
from scaler.acting.instance_update import MAX_INSTANCES, InstanceLoad
from scaler.acting.model_lock import ModelLock
from scaler.acting.rest_actuator import RestActuator
from scaler.acting.starting import EndStubs
from scaler.acting.target import Limits, ScaleResult
from scaler.deciding.observation import Counts
from scaler.errors import Busy, ModelUnknown, NodeUnreachable, TritonUnreachable


class Triton(rest_actuator.Triton, actuator.Triton, Protocol):
    """What is needed of Triton; `TritonClient` is one."""


class NodeTarget:
    """A `Target`. One per node: what it counts as starting is what it started itself, or Triton serves already."""

    def __init__(
        self,
        triton: Triton,
        node: actuator.Node,
        run_dir: Path,
        *,
        limits: Callable[[str], Limits],
        say: Say,
        end_stubs: EndStubs | None = None,
    ) -> None:
        self._triton = triton
        self._node = node
        self._run_dir = run_dir
        self._limits = limits
        self._say = say
        self._actuator = Actuator(triton, node, run_dir, say=say, end_stubs=end_stubs)
        self._rest = RestActuator(triton, node, run_dir, say=say, end_stubs=end_stubs)
        self._changing: set[str] = set()

    async def counts(self, model: str) -> Counts | None:
        """Also lets instances serve on that a scaler was draining when it was killed."""
        try:
            served = await self._served(model)
            loads = await self._node.loads(model)
        except (TritonUnreachable, NodeUnreachable):
            return None
        if served is None:
            return None
        await self._resume_orphans(model, loads)
        counts = count(served, loads, self._actuator.starting(model), self._rest.num_starting(model))
        return counts

    async def _served(self, model: str) -> tuple[str, ...] | None:
        """Names of the groups. None: Triton has no such model."""
        try:
            config: ModelConfig = await self._triton.config(model)
        except ModelUnknown:
            return None if await resting.is_loaded(self._triton, model) is None else ()
        return tuple(group.name for group in config.instance_group)

    async def _resume_orphans(self, model: str, loads: list[InstanceLoad]) -> None:
        orphans = [load.instance for load in loads if load.is_draining]
        if not orphans or model in self._changing:
            return
        try:
            async with ModelLock(self._run_dir, model, 0):
                self._say(f"{model}: {', '.join(orphans)} left draining by a scaler that is gone; serving on")
                await draining.resume(self._node, model, orphans, self._say)
        except Busy:
            pass  # somebody drains them

    async def scale(self, model: str, wanted: int, reason: str) -> ScaleResult:
        if model in self._changing:
            raise Busy(f"{model!r} is being changed already; one change at a time")
        self._changing.add(model)
        try:
            return _result(await self._change(model, wanted))
        finally:
            self._changing.discard(model)

    async def _change(self, model: str, wanted: int) -> InstanceChange:
        limits = self._limits(model)
        patience = Patience(
            drain_s=limits.drain_timeout_s,
            start_s=limits.start_deadline_s,
            update_s=limits.start_deadline_s + limits.drain_timeout_s,
        )
        is_loaded = await resting.is_loaded(self._triton, model)
        if is_loaded is None:
            raise ModelUnknown(f"Triton's repository has no model {model!r}; see `tidegate status`")
        if wanted == 0:
            return await self._rest.put_to_rest(model, patience) if is_loaded else _nothing(model)
        if not is_loaded:
            change = await self._rest.bring_back(model, wanted, patience)
            if len(change.after) == wanted:
                return change
        else:
            self._rest.forget(model)  # from an earlier stack in this run directory, maybe of another config
        return await self._actuator.scale(model, wanted, patience)


def count(
    served: tuple[str, ...], loads: list[InstanceLoad], added: tuple[str, ...], num_woken: int
) -> Counts:
    """Served by Triton and attached with a worker: ready. Served, attached or asked for, but not all: starting.

    A stub that drains and is served no more is on its way out; it is counted as draining until it is gone.
    """
    attached = {load.instance: load for load in loads}
    draining = {name for name, load in attached.items() if load.is_draining}
    ready = {name for name in served if name in attached and attached[name].has_worker} - draining
    known = {*served, *attached, *added} - draining - ready
    total = max(len(ready) + len(known), num_woken)
    return Counts(
        ready=len(ready),
        starting=total - len(ready),
        draining=len(draining),
        room=max(0, MAX_INSTANCES - total - len(draining)),
    )


def _nothing(model: str) -> InstanceChange:
    return InstanceChange(model, (), (), (), (), 0.0, in_place=True)


def _result(change: InstanceChange) -> ScaleResult:
    return ScaleResult(
        model=change.model,
        before=len(change.before),
        after=len(change.after),
        seconds=change.ready_ms / 1000,
        in_place=change.in_place,
        detail=" ".join([*(f"+{name}" for name in change.added), *(f"-{name}" for name in change.removed)]),
    )
