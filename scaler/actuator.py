"""Makes a model have so many instances, in place, without failing a request. Alone here changes the world.

Out: one load call with the groups added. In: drain the victims, wait until nothing of theirs is in flight, one
load call without their groups. Either way: one update per model at a time, then look at what Triton serves and
at which stubs live, because Triton answers OK to a full reload too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tritonclient.grpc.model_config_pb2 import ModelConfig

from contracts.stack import Stack
from scaler import instance_update as update
from scaler.errors import ConfigDrifted, DrainTimeout, LoadPending, LoadRefused, ScaleError, UpdateTimeout
from scaler.instance_update import InstanceLoad, Plan
from scaler.model_lock import ModelLock
from scaler.node_client import NodeClient
from scaler.triton_client import TritonClient

POLL_S = 0.01

Say = Callable[[str], None]


class Triton(Protocol):
    """What the actuator needs of Triton; `TritonClient` is one."""

    async def config(self, model: str) -> ModelConfig: ...
    async def load(self, model: str, config_json: str, timeout_s: float) -> None: ...


class Node(Protocol):
    """What the actuator needs of the node daemon; `NodeClient` is one."""

    async def loads(self, model: str) -> list[InstanceLoad]: ...
    async def drain(self, model: str, instance: str) -> InstanceLoad: ...
    async def resume(self, model: str, instance: str) -> None: ...
    async def prepare_spares(self, model: str, num_spares: int, timeout_s: float) -> bool: ...


@dataclass(frozen=True)
class ScaleResult:
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
    load_s: float = 15.0
    """For the load call; it takes 0.2 s to add and 1 to 4 s to remove. Past it only the watching goes on."""
    update_s: float = 120.0
    """For the update as a whole, from the load call on."""


class Actuator:
    """Applies instance counts to one Triton. Safe to use from several processes on a node (see ModelLock)."""

    def __init__(
        self, triton: Triton, node: Node, run_dir: Path, *, say: Say, patience: Patience | None = None
    ) -> None:
        self._triton = triton
        self._node = node
        self._run_dir = run_dir
        self._say = say
        self._patience = patience or Patience()

    async def scale(self, model: str, num_instances: int) -> ScaleResult:
        """Raises what `scaler.errors` names. Asking for what is there already changes nothing.

        A cancel during the drain lets the victims serve on; once the load call is sent, Triton completes it.
        """
        started_s = time.monotonic()
        async with ModelLock(self._run_dir, model, self._patience.lock_s) as lock:
            config = await self._triton.config(model)
            loads = await self._node.loads(model)
            plan = update.plan_update(config, num_instances, loads, lock.highest_id)
            lock.remember(max(update.number_of(model, name) for name in plan.after + plan.before))
            if plan.added:
                self._say(f"{model}: adding {', '.join(plan.added)}")
                await self._prepare_spares(model, len(plan.added))
                await self._apply(config, plan)
            elif plan.removed:
                self._say(f"{model}: draining {', '.join(plan.removed)}")
                await self._drain_and_remove(config, plan)
            in_place = await self._stayed(model, plan, loads)
        return ScaleResult(
            model=model,
            before=plan.before,
            after=plan.after,
            added=plan.added,
            removed=plan.removed,
            ready_ms=(time.monotonic() - started_s) * 1000,
            in_place=in_place,
        )

    async def _prepare_spares(self, model: str, num: int) -> None:
        if not await self._node.prepare_spares(model, num, self._patience.spares_s):
            self._say(f"{model}: {num} warm workers not ready after {self._patience.spares_s:g} s; going on")

    async def _drain_and_remove(self, config: ModelConfig, plan: Plan) -> None:
        """While no removal is sent, any failure (a cancel included) lets the victims serve on."""
        try:
            await self._drain(config.name, plan.removed)
        except BaseException:
            await asyncio.shield(self._resume(config.name, plan.removed))
            raise
        self._say(f"{config.name}: removing {', '.join(plan.removed)}")
        try:
            await self._apply(config, plan)
        except LoadRefused:
            # Only then is it sure that Triton will not remove them: a stream taken on now would be cut.
            await self._resume(config.name, plan.removed)
            raise

    async def _drain(self, model: str, victims: Sequence[str]) -> None:
        attached = {load.instance for load in await self._node.loads(model)}
        at_drain = {name: await self._node.drain(model, name) for name in victims if name in attached}
        deadline_s = time.monotonic() + self._patience.drain_s
        while True:
            loads = {load.instance: load for load in await self._node.loads(model)}
            busy = [
                load
                for name, before in at_drain.items()
                if (load := loads.get(name)) and not update.is_drained(before, load)
            ]
            if not busy:
                return
            if time.monotonic() > deadline_s:
                raise DrainTimeout(
                    f"{', '.join(f'{load.instance} has {load.in_flight} requests' for load in busy)} in flight "
                    f"after {self._patience.drain_s:g} s of draining; all instances serve on; "
                    "allow more time, or try again when they are done"
                )
            await asyncio.sleep(POLL_S)

    async def _resume(self, model: str, names: Sequence[str]) -> None:
        for name in names:
            try:
                await self._node.resume(model, name)
            except ScaleError as exc:
                self._say(f"{model}: {name} could not be resumed: {exc}")

    async def _apply(self, config: ModelConfig, plan: Plan) -> None:
        """Send the one load call, and wait until Triton serves exactly what was sent.

        A cancel is heeded only after that: the lock must not go while Triton works on the call.
        """
        sending = asyncio.create_task(self._send_and_watch(config, plan))
        try:
            await asyncio.shield(sending)
        except asyncio.CancelledError:
            await asyncio.wait({sending})
            raise

    async def _send_and_watch(self, config: ModelConfig, plan: Plan) -> None:
        wanted = update.with_instances(config, plan.after)
        text = update.override_json(config, wanted)
        deadline_s = time.monotonic() + self._patience.update_s
        try:
            await self._triton.load(config.name, text, self._patience.load_s)
        except LoadPending as exc:
            # Not a failure: a load waits for what is executing. A second call would only queue behind it.
            self._say(f"{config.name}: {exc}; watching what Triton serves")
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
            if (
                names == set(plan.after)
                and attached.issuperset(plan.added)
                and attached.isdisjoint(plan.removed)
            ):
                return
            if time.monotonic() > deadline_s:
                raise UpdateTimeout(
                    f"model {model!r}: {self._patience.update_s:g} s after the load call Triton serves "
                    f"{sorted(names)} and {sorted(attached)} are attached, wanted {sorted(plan.after)}; "
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


async def scale(
    stack: Stack,
    model: str,
    num_instances: int,
    *,
    on_event: Say,
    drain_timeout_s: float = Patience.drain_s,
) -> ScaleResult:
    """`Actuator.scale` on a running stack."""
    triton, node = TritonClient(stack.triton_grpc), NodeClient(stack.node_socket)
    try:
        patience = Patience(drain_s=drain_timeout_s)
        actuator = Actuator(triton, node, Path(stack.run_dir), say=on_event, patience=patience)
        return await actuator.scale(model, num_instances)
    finally:
        await asyncio.gather(triton.close(), node.close())
