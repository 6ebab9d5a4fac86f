"""How much of the pool a model or a tenant may hold: floors that others keep out of, ceilings that it keeps below.

"Held" is what nobody else can have: bytes on lease and published blocks that are being read. Cached blocks are held
by nobody. Pure arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from contracts.stack import ServedModel


@dataclass(frozen=True)
class ModelQuota:
    floor_bytes: int = 0
    """Always there for this model: what it does not use of it is free, but not for the others."""
    ceiling_bytes: int = 0
    """0: none."""
    tenant_ceiling_bytes: int = 0
    """For each tenant of the model; 0: none. Requests without a tenant ("") are not bound by it."""
    cache_bytes: int = 0
    """Most that its cached prefix blocks take; 0: what nobody needs."""

    @classmethod
    def of(cls, served: ServedModel) -> ModelQuota:
        return cls(
            floor_bytes=served.kv_floor_bytes,
            ceiling_bytes=served.kv_ceiling_bytes,
            tenant_ceiling_bytes=served.tenant_ceiling_bytes,
            cache_bytes=served.prefix_cache_bytes,
        )


@dataclass(frozen=True)
class Allowance:
    """What a request may have, and which rule says so."""

    nbytes: int
    rule: str


def allowance(
    model: str,
    tenant: str,
    quotas: Mapping[str, ModelQuota],
    held: Mapping[str, int],
    held_by_tenant: Mapping[tuple[str, str], int],
    total_bytes: int,
) -> Allowance:
    """The most that `model` may be granted now on `tenant`'s account; 0 bytes or less: nothing."""
    quota = quotas.get(model, ModelQuota())
    owed = sum(
        max(0, other.floor_bytes - held.get(name, 0)) for name, other in quotas.items() if name != model
    )
    free = total_bytes - sum(held.values())
    rules = [Allowance(free - owed, f"{free} bytes are free, {owed} of them are other models' floors")]
    if quota.ceiling_bytes:
        has = held.get(model, 0)
        text = f"{model} holds {has} bytes, its ceiling is {quota.ceiling_bytes}"
        rules.append(Allowance(quota.ceiling_bytes - has, text))
    if quota.tenant_ceiling_bytes and tenant:
        has = held_by_tenant.get((model, tenant), 0)
        text = f"tenant {tenant!r} holds {has} bytes of {model}, its ceiling is {quota.tenant_ceiling_bytes}"
        rules.append(Allowance(quota.tenant_ceiling_bytes - has, text))
    return min(rules, key=lambda rule: rule.nbytes)
