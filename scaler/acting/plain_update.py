"""Configs that others wrote, `{count: N}` in a group: how many instances, and what to send for another number.

Only `count` changes, and one group's name (the owner's mark, see ownership.py): Triton tells instances apart by
everything in their group but these two, so whoever stays is not touched. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args

from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from contracts.stack import ModelKind
from scaler.errors import ConfigRefused

KINDS_OF_NODE = get_args(ModelKind)


def check_foreign(config: ModelConfig) -> None:
    """Raises ConfigRefused for a model of a tidegate node: only its node can drain it."""
    # Never by [..]: that would add the key to the config, and make the next update a full reload.
    kind = config.parameters["kind"].string_value if "kind" in config.parameters else ""
    groups = config.instance_group
    if kind in KINDS_OF_NODE and all(group.name == group.host_policy for group in groups):
        raise ConfigRefused(
            f"model {config.name!r} is served by a tidegate node, which has to drain its instances; "
            "scale it on that node's host"
        )


def is_decoupled(config: ModelConfig) -> bool:
    return bool(config.model_transaction_policy.decoupled)


def num_instances(config: ModelConfig) -> int:
    """Passive ones do not count: they take no requests."""
    return sum(group.count * per_count(group) for group in scalable(config))


def scalable(config: ModelConfig) -> list[ModelInstanceGroup]:
    return [group for group in config.instance_group if not group.passive]


def per_count(group: ModelInstanceGroup) -> int:
    """Instances that one more in `count` makes: one on each of the group's GPUs."""
    return max(1, len(group.gpus)) if group.kind == ModelInstanceGroup.KIND_GPU else 1


def with_count(config: ModelConfig, wanted: int) -> ModelConfig:
    """A copy with at least `wanted` instances, as near as whole groups go; no group below one.

    The smallest group grows first and the largest shrinks first, so GPUs stay evenly filled. Raises ConfigRefused.
    """
    if config.platform == "ensemble":
        raise ConfigRefused(f"model {config.name!r} is an ensemble, which has no instances; scale its steps")
    if not scalable(config):
        raise ConfigRefused(f"model {config.name!r} has only passive instance groups; nothing to scale")
    if wanted < 1:
        raise ConfigRefused(
            f"{wanted} instances asked for, must be at least 1; unload the model to have none"
        )
    changed = ModelConfig()
    changed.CopyFrom(config)
    groups = scalable(changed)
    while num_instances(changed) < wanted:
        min(groups, key=lambda group: group.count).count += 1
    while spare := _can_shrink(groups, num_instances(changed) - wanted):
        max(spare, key=lambda group: group.count).count -= 1
    return changed


def _can_shrink(groups: Iterable[ModelInstanceGroup], surplus: int) -> list[ModelInstanceGroup]:
    return [group for group in groups if group.count > 1 and per_count(group) <= surplus]
