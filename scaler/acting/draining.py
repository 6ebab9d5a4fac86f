"""Waits until instances have nothing in flight, within a deadline; whatever goes wrong, they serve on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from scaler.acting.instance_update import InstanceLoad, is_drained
from scaler.errors import DrainTimeout, ScaleError

POLL_S = 0.01

Say = Callable[[str], None]


class Node(Protocol):
    """What draining needs of the node daemon; `NodeClient` is one."""

    async def loads(self, model: str) -> list[InstanceLoad]: ...
    async def drain(self, model: str, instance: str) -> InstanceLoad: ...
    async def resume(self, model: str, instance: str) -> None: ...


async def drain(node: Node, model: str, victims: Sequence[str], timeout_s: float, say: Say) -> None:
    """Returns with the victims still draining, so that they can be taken away without cutting a stream.

    Raises DrainTimeout, and what the node raises; then, as after a cancel, all of them serve on.
    """
    try:
        attached = {load.instance for load in await node.loads(model)}
        at_drain = {name: await node.drain(model, name) for name in victims if name in attached}
        deadline_s = time.monotonic() + timeout_s
        while busy := _busy(at_drain, await node.loads(model)):
            if time.monotonic() > deadline_s:
                raise DrainTimeout(
                    f"{', '.join(f'{load.instance} has {load.in_flight} requests' for load in busy)} in flight "
                    f"after {timeout_s:g} s of draining; all instances serve on; "
                    "allow more time, or try again when they are done"
                )
            await asyncio.sleep(POLL_S)
    except BaseException:
        await asyncio.shield(resume(node, model, victims, say))
        raise


def _busy(at_drain: dict[str, InstanceLoad], loads: Iterable[InstanceLoad]) -> list[InstanceLoad]:
    now = {load.instance: load for load in loads}
    return [
        now[name] for name, before in at_drain.items() if name in now and not is_drained(before, now[name])
    ]


async def resume(node: Node, model: str, names: Sequence[str], say: Say) -> None:
    for name in names:
        try:
            await node.resume(model, name)
        except ScaleError as exc:
            say(f"{model}: {name} could not be resumed: {exc}")
