"""What to send to Triton to have other instances, and which to take. Pure: no sockets, no clock.

An override in RepositoryModelLoad is the *whole* config, and only `instance_group` may differ from the served
one: anything else is a full reload that restarts every stub (or worse, takes a model's inputs away). Every
instance is a group of its own, {name: ID, count: 1, host_policy: ID}, because only groups that differ in
`host_policy` can be removed one by one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from google.protobuf import json_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from scaler.errors import ConfigRefused

MAX_INSTANCES = 64


@dataclass(frozen=True)
class InstanceLoad:
    """What the node says about one attached instance."""

    instance: str
    stub_pid: int
    in_flight: int
    landed: int
    attached_unix_ms: int
    is_draining: bool
    has_worker: bool = True
    """False: it waits for its first worker, or for the next one after a death."""


@dataclass(frozen=True)
class Plan:
    """Which instances come and which go. At most one of the two is not empty."""

    model: str
    before: tuple[str, ...]
    added: tuple[str, ...]
    removed: tuple[str, ...]

    @property
    def after(self) -> tuple[str, ...]:
        return (*(name for name in self.before if name not in self.removed), *self.added)


def instance_names(config: ModelConfig) -> tuple[str, ...]:
    """Raises ConfigRefused when a group is more than one instance, or can't be removed on its own."""
    for group in config.instance_group:
        if group.count != 1 or group.host_policy != group.name:
            raise ConfigRefused(
                f"model {config.name!r}: group {group.name!r} has count {group.count} and host_policy "
                f"{group.host_policy!r}; scaling needs one group per instance, with host_policy equal to its name"
            )
    return tuple(group.name for group in config.instance_group)


def plan_update(
    config: ModelConfig, num_instances: int, loads: Sequence[InstanceLoad], highest_id: int
) -> Plan:
    """`highest_id`: the highest number given so far, as remembered; ids never come back."""
    if not 1 <= num_instances <= MAX_INSTANCES:
        raise ConfigRefused(
            f"{num_instances} instances asked for, must be from 1 to {MAX_INSTANCES} "
            "(Triton silently makes 0 a 1; unload the model to have none)"
        )
    before = instance_names(config)
    missing = num_instances - len(before)
    if missing >= 0:
        seen = [*before, *(load.instance for load in loads)]
        return Plan(config.name, before, added=next_ids(config.name, seen, highest_id, missing), removed=())
    return Plan(config.name, before, added=(), removed=choose_victims(before, loads, -missing))


def next_ids(model: str, seen: Iterable[str], highest_id: int, num: int) -> tuple[str, ...]:
    """ "chat-3" after "chat-2", even when chat-1 is free: an id names one instance for ever."""
    first = max([highest_id, *(number_of(model, name) for name in seen)]) + 1
    return tuple(f"{model}-{number}" for number in range(first, first + num))


def number_of(model: str, instance: str) -> int:
    """-1 for a name that is not of our making."""
    match = re.fullmatch(re.escape(model) + r"-(\d+)", instance)
    return int(match.group(1)) if match else -1


def choose_victims(names: Sequence[str], loads: Sequence[InstanceLoad], num: int) -> tuple[str, ...]:
    """The least in flight first, then the newest. One without a stub or a worker serves nobody: it goes first."""
    known = {load.instance: load for load in loads}

    def cost(name: str) -> tuple[int, int]:
        load = known.get(name)
        if load is None:
            return (-2, 0)
        return (load.in_flight if load.has_worker else -1, -load.attached_unix_ms)

    return tuple(sorted(names, key=cost)[:num])


def with_instances(config: ModelConfig, names: Sequence[str]) -> ModelConfig:
    """A copy of `config` with one group per name; new groups are made like the first one there is."""
    groups = {group.name: group for group in config.instance_group}
    wanted = ModelConfig()
    wanted.CopyFrom(config)
    del wanted.instance_group[:]
    for name in names:
        group = wanted.instance_group.add()
        group.CopyFrom(groups.get(name, config.instance_group[0]))
        group.name = group.host_policy = name
        group.count = 1
    return wanted


def differences(served: ModelConfig, wanted: ModelConfig) -> list[str]:
    """Names of the top-level fields that differ, instance_group excepted."""
    return [
        field.name
        for field in ModelConfig.DESCRIPTOR.fields
        if field.name != "instance_group" and getattr(served, field.name) != getattr(wanted, field.name)
    ]


def override_json(served: ModelConfig, wanted: ModelConfig) -> str:
    """The text for the load call's `config` parameter. Raises ConfigRefused if it would change more than groups."""
    known = ModelConfig()
    known.CopyFrom(served)
    known.DiscardUnknownFields()
    if known.ByteSize() != served.ByteSize():
        raise ConfigRefused(
            f"model {served.name!r}: Triton serves config fields that the installed tritonclient does not know, "
            "so the update would drop them; install a tritonclient as new as the server"
        )
    text = json_format.MessageToJson(wanted, preserving_proto_field_name=True, indent=None)
    changed = differences(served, json_format.Parse(text, ModelConfig()))
    if changed:
        raise ConfigRefused(
            f"model {served.name!r}: the update would change {', '.join(changed)} beside instance_group, "
            "which restarts every instance; edit the repository and reload the model for that"
        )
    return text


def is_drained(at_drain: InstanceLoad, now: InstanceLoad) -> bool:
    """Has the instance had nothing in flight at any time since it began to drain?

    While draining, its `execute` returns only at nothing in flight, so from that moment on it can be removed
    without cutting a stream. A queue in front of the model fills the gap again at once, too soon for a poll to
    see a 0; but two requests that landed since prove it: the second one's `execute` came after the first one's
    had returned.
    """
    return now.in_flight == 0 or now.landed >= at_drain.landed + 2
