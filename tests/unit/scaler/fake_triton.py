"""A Triton and a node that are told what to do, for tests of what acts on them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from google.protobuf import json_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from scaler.acting.instance_update import InstanceLoad
from scaler.errors import LoadPending, LoadRefused, ModelUnknown
from scaler.triton_client import IndexEntry


@dataclass
class FakeNode:
    instances: dict[str, InstanceLoad] = field(default_factory=dict)
    resumed: list[str] = field(default_factory=list)
    spares_asked: list[int] = field(default_factory=list)
    finishes: bool = True
    """Draining instances have nothing in flight at the next look."""
    lands_while_draining: int = 0
    """Requests that come to an instance when it begins to drain."""

    def attach(self, name: str, pid: int, in_flight: int = 0) -> None:
        self.instances[name] = InstanceLoad(name, pid, in_flight, 0, pid, is_draining=False)

    async def loads(self, model: str) -> list[InstanceLoad]:
        now = list(self.instances.values())
        if self.finishes:
            for name, load in self.instances.items():
                self.instances[name] = replace(load, in_flight=0) if load.is_draining else load
        return now

    async def drain(self, model: str, instance: str) -> InstanceLoad:
        load = self.instances[instance]
        self.instances[instance] = replace(
            load, is_draining=True, landed=load.landed + self.lands_while_draining
        )
        return replace(load, is_draining=True)

    async def resume(self, model: str, instance: str) -> None:
        self.resumed.append(instance)
        self.instances[instance] = replace(self.instances[instance], is_draining=False)

    async def prepare_spares(self, model: str, num_spares: int, timeout_s: float) -> bool:
        self.spares_asked.append(num_spares)
        return True


@dataclass
class FakeTriton:
    node: FakeNode
    served: ModelConfig
    is_loaded: bool = True
    loads: list[ModelConfig] = field(default_factory=list)
    error: Exception | None = None
    applies: bool = True
    reloads_all: bool = False
    drifts: bool = False
    hangs: bool = False
    """The next load's `initialize` never returns; the load call ends when its stub is killed."""
    _killed: asyncio.Event = field(default_factory=asyncio.Event)

    async def config(self, model: str) -> ModelConfig:
        if not self.is_loaded:
            raise ModelUnknown(f"Request for unknown model: {model!r} has no available versions")
        copied = ModelConfig()
        copied.CopyFrom(self.served)
        return copied

    async def index(self) -> list[IndexEntry]:
        state, reason = ("READY", "") if self.is_loaded else ("UNAVAILABLE", "unloaded")
        return [IndexEntry(self.served.name, state, reason)]

    async def load(self, model: str, config_json: str, timeout_s: float) -> None:
        wanted = json_format.Parse(config_json, ModelConfig())
        self.loads.append(wanted)
        for name in [
            name for name, load in self.node.instances.items() if load.in_flight and load.is_draining
        ]:
            raise AssertionError(f"{name} was removed with requests in flight")
        if self.hangs:
            await self._hang(model, timeout_s)
        if self.applies:
            self.apply(wanted)
        if self.error:
            raise self.error

    async def load_from_repository(self, model: str, timeout_s: float) -> None:
        self.apply(self.served)

    async def unload(self, model: str) -> None:
        self.is_loaded = False
        self.node.instances.clear()

    async def _hang(self, model: str, timeout_s: float) -> None:
        try:
            await asyncio.wait_for(self._killed.wait(), timeout_s)
        except TimeoutError:
            raise LoadPending(f"load of {model!r} has not returned after {timeout_s:g} s") from None
        raise LoadRefused("Stub process is not healthy.")

    def end_stubs(self, model: str, instances: Collection[str]) -> list[int]:
        """What `stub_processes.end_stubs` does on the host of a real one."""
        self._killed.set()
        return [4711 for _ in instances]

    def apply(self, wanted: ModelConfig) -> None:
        self.is_loaded = True
        self.served = wanted
        if self.drifts:
            self.served.max_batch_size += 1
        names = {group.name for group in wanted.instance_group}
        for name in names - set(self.node.instances):
            self.node.attach(name, 1000 + len(self.loads))
        for name in set(self.node.instances) - names:
            del self.node.instances[name]
        if self.reloads_all:
            for name in names:
                self.node.attach(name, 2000)


def served_by_node(*names: str) -> FakeTriton:
    """A model "chat" of ours with these instances."""
    config = ModelConfig(name="chat", backend="python")
    node = FakeNode()
    for number, name in enumerate(names):
        config.instance_group.add(name=name, kind="KIND_CPU", count=1, host_policy=name)
        node.attach(name, 100 + number)
    return FakeTriton(node, config)
