"""The stubs that are attached, and the board slots they occupy. State only: nothing here sends or reads."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import NewType

from python_backend.node.errors import InstanceUnknown, SlotsExhausted

InstanceId = NewType("InstanceId", int)
"""One connection of a stub. Triton's instance names are not unique over time, connections are."""
WorkerId = NewType("WorkerId", int)


@dataclass
class Instance:
    id: InstanceId
    model: str
    name: str
    """Triton's instance-group name: "chat-0"."""
    stub_pid: int
    slot: int
    attached_unix_ms: int
    worker: WorkerId | None = None
    """None: waits for one."""
    has_been_attached: bool = False
    is_draining: bool = False
    worker_restarts: int = 0

    @property
    def state(self) -> str:
        return "draining" if self.is_draining else "serving"


class Slots:
    """Which slots of the board are taken; the lowest free one is given out first."""

    def __init__(self, num_slots: int) -> None:
        self._free = list(range(num_slots))
        self._num_slots = num_slots

    def take(self) -> int:
        """Raises SlotsExhausted."""
        if not self._free:
            raise SlotsExhausted(
                f"all {self._num_slots} slots of the board are taken; remove an instance first"
            )
        return heapq.heappop(self._free)

    def give_back(self, slot: int) -> None:
        heapq.heappush(self._free, slot)

    @property
    def num_free(self) -> int:
        return len(self._free)


@dataclass
class Instances:
    """All attached instances, in the order of their coming."""

    slots: Slots
    _by_id: dict[InstanceId, Instance] = field(default_factory=dict)

    def add(self, connection: InstanceId, model: str, name: str, stub_pid: int, now_unix_ms: int) -> Instance:
        """Raises SlotsExhausted."""
        instance = Instance(connection, model, name, stub_pid, self.slots.take(), now_unix_ms)
        self._by_id[connection] = instance
        return instance

    def remove(self, connection: InstanceId) -> Instance | None:
        """The slot stays taken: its worker may still write to it. `slots.give_back` when that one is gone."""
        return self._by_id.pop(connection, None)

    def get(self, connection: InstanceId) -> Instance | None:
        return self._by_id.get(connection)

    def all(self) -> list[Instance]:
        return list(self._by_id.values())

    def of_model(self, model: str) -> list[Instance]:
        return [instance for instance in self._by_id.values() if instance.model == model]

    def waiting(self, model: str) -> list[Instance]:
        """Without a worker, longest-attached first."""
        return [instance for instance in self.of_model(model) if instance.worker is None]

    def named(self, model: str, name: str) -> Instance:
        """The newest of that name: while Triton replaces an instance, two may be there. Raises InstanceUnknown."""
        matching = [instance for instance in self.of_model(model) if instance.name == name]
        if not matching:
            known = ", ".join(instance.name for instance in self.of_model(model)) or "none"
            raise InstanceUnknown(f"no instance {name!r} of model {model!r} is attached; attached: {known}")
        return matching[-1]
