"""Makes a model have so many instances, in place, without failing a request. Alone here changes the world.

Out: one load call with the groups added. In: drain the victims, wait until nothing of theirs is in flight, one
load call without their groups. Either way: one update per model at a time, then look at what Triton serves and
at which stubs live, because Triton answers OK to a full reload too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tritonclient.grpc.model_config_pb2 import ModelConfig

from scaler.acting import draining, starting
from scaler.acting import instance_update as update
from scaler.acting.draining import Say
from scaler.acting.instance_update import InstanceLoad, Plan
from scaler.acting.model_lock import ModelLock
from scaler.acting.starting import EndStubs
from scaler.errors import ConfigDrifted, LoadPending, LoadRefused, UpdateTimeout
from scaler.finishing import to_its_end

POLL_S = 0.01


class Triton(Protocol):
    """What the actuator needs of Triton; `TritonClient` is one."""

    async def config(self, model: str) -> ModelConfig: ...
    async def load(self, model: str, config_json: str, timeout_s: float) -> None: ...


class Node(draining.Node, Protocol):
    """What the actuator needs of the node daemon; `NodeClient` is one."""

    async def prepare_spares(self, model: str, num_spares: int, timeout_s: float) -> bool: ...


@dataclass(frozen=True)
class InstanceChange:
    """What one call did."""

    model: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    added: tuple[str, ...]
    removed: tuple[str, ...]
    ready_ms: float
    """From the call to all new instances ready (out), or to the victims gone (in, drain included)."""
    in_place: bool
    """False: instances that were to stay were restarted; requests survived, but it took a full reload."""


@dataclass(frozen=True)
class Patience:
    """How long to wait for what."""

    lock_s: float = 60.0
    """For another update of the same model."""
    spares_s: float = 60.0
    """For warm workers. Past it the load is sent all the same: the stubs wait for their workers then."""
    drain_s: float = 60.0
    """For requests in flight on the instances that go."""
    start_s: float = 120.0
    """For added instances to start. Past it they are given up: a stub whose `initialize` hangs, hangs for ever."""
    load_s: float = 15.0
    """For the load call of a removal; it takes 1 to 4 s. Past it only the watching goes on."""
    update_s: float = 180.0
    """For the update as a whole, from the load call on."""


DEFAULT_PATIENCE = Patience()


class Actuator:
    """Applies instance counts to one Triton. Safe to use from several processes on a node (see ModelLock)."""

    def __init__(
        self, triton: Triton, node: Node, run_dir: Path, *, say: Say, end_stubs: EndStubs | None = None
    ) -> None:
        self._triton = triton
        self._node = node
        self._run_dir = run_dir
        self._say = say
        self._end_stubs = end_stubs
        self._starting: dict[str, tuple[str, ...]] = {}

    def starting(self, model: str) -> tuple[str, ...]:
        """Instances that a call in progress adds; Triton tells nothing of them before they serve."""
        return self._starting.get(model, ())

    async def scale(
        self, model: str, num_instances: int, patience: Patience = DEFAULT_PATIENCE
    ) -> InstanceChange:
        """Raises what `scaler.errors` names. Asking for what is there already changes nothing.

        A cancel during the drain lets the victims serve on; once the load call is sent, Triton completes it.
        """
        started_s = time.monotonic()
        async with ModelLock(self._run_dir, model, patience.lock_s) as lock:
            config = await self._triton.config(model)
            loads = await self._node.loads(model)
            plan = update.plan_update(config, num_instances, loads, lock.highest_id)
            lock.remember(max(update.number_of(model, name) for name in plan.after + plan.before))
            if plan.added:
                self._say(f"{model}: adding {', '.join(plan.added)}")
                await self._add(config, plan, patience)
            elif plan.removed:
                self._say(f"{model}: draining {', '.join(plan.removed)}")
                await self._drain_and_remove(config, plan, patience)
            in_place = await self._stayed(model, plan, loads)
        return InstanceChange(
            model=model,
            before=plan.before,
            after=plan.after,
            added=plan.added,
            removed=plan.removed,
            ready_ms=(time.monotonic() - started_s) * 1000,
            in_place=in_place,
        )

    async def _add(self, config: ModelConfig, plan: Plan, patience: Patience) -> None:
        self._starting[plan.model] = plan.added
        try:
            await prepare_spares(self._node, plan.model, len(plan.added), patience.spares_s, self._say)
            await to_its_end(self._apply(config, plan, patience))
        finally:
            del self._starting[plan.model]

    async def _drain_and_remove(self, config: ModelConfig, plan: Plan, patience: Patience) -> None:
        """While no removal is sent, any failure (a cancel included) lets the victims serve on."""
        await draining.drain(self._node, config.name, plan.removed, patience.drain_s, self._say)
        self._say(f"{config.name}: removing {', '.join(plan.removed)}")
        try:
            await to_its_end(self._apply(config, plan, patience))
        except LoadRefused:
            # Only then is it sure that Triton will not remove them: a stream taken on now would be cut.
            await draining.resume(self._node, config.name, plan.removed, self._say)
            raise

    async def _apply(self, config: ModelConfig, plan: Plan, patience: Patience) -> None:
        """Send the one load call, and wait until Triton serves exactly what was sent."""
        wanted = update.with_instances(config, plan.after)
        text = update.override_json(config, wanted)
        deadline_s = time.monotonic() + patience.update_s
        try:
            if plan.added:
                await starting.load(
                    self._triton,
                    plan.model,
                    text,
                    plan.added,
                    start_s=patience.start_s,
                    update_s=patience.update_s,
                    end_stubs=self._end_stubs,
                    say=self._say,
                )
            else:
                await self._triton.load(plan.model, text, patience.load_s)
        except LoadPending as exc:
            # Not a failure: a removal waits for what is executing. A second call would only queue behind it.
            self._say(f"{plan.model}: {exc}; watching what Triton serves")
        await self._wait_served(wanted, plan, deadline_s)

    async def _wait_served(self, wanted: ModelConfig, plan: Plan, deadline_s: float) -> None:
        model = wanted.name
        while True:
            served = await self._triton.config(model)
            if changed := update.differences(served, wanted):
                raise ConfigDrifted(
                    f"model {model!r}: after the update Triton serves another {', '.join(changed)}; "
                    "reload the model from its repository"
                )
            attached = {load.instance for load in await self._node.loads(model)}
            names = {group.name for group in served.instance_group}
            if names == set(plan.after) and attached >= set(plan.added) and not attached & set(plan.removed):
                return
            if time.monotonic() > deadline_s:
                raise UpdateTimeout(
                    f"model {model!r}: the load call was sent long ago and Triton serves {sorted(names)}, "
                    f"{sorted(attached)} are attached, wanted {sorted(plan.after)}; "
                    "Triton may still complete it: look again before sending another"
                )
            await asyncio.sleep(POLL_S)

    async def _stayed(self, model: str, plan: Plan, before: Sequence[InstanceLoad]) -> bool:
        """Are the stubs of the instances that stay the same processes as before?"""
        now = {load.instance: load.stub_pid for load in await self._node.loads(model)}
        staying = [load for load in before if load.instance in plan.after]
        restarted = [load.instance for load in staying if now.get(load.instance) != load.stub_pid]
        if restarted:
            self._say(
                f"{model}: not in place: {', '.join(restarted)} restarted (a file of the model changed?)"
            )
        return not restarted


async def prepare_spares(node: Node, model: str, num: int, timeout_s: float, say: Say) -> None:
    """Warm workers for instances to come; without them the stubs wait for theirs."""
    if not await node.prepare_spares(model, num, timeout_s):
        say(f"{model}: {num} warm workers not ready after {timeout_s:g} s; going on")
