"""How much of the pool a model or a tenant may hold: floors that others keep out of, ceilings that it keeps below.

"Held" is what nobody else can have: bytes on lease and published blocks that are being read. Cached blocks are held
by nobody. Pure arithmetic.
"""

from __future__ import annotations

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


@dataclass(slots=True)
class Standing:
    """What the rules look at when a model asks for more on a tenant's account."""

    model: str
    tenant: str
    quota: ModelQuota
    free_bytes: int
    """Held by nobody."""
    owed_bytes: int
    """Of them, what the other models' floors still lack."""
    held_bytes: int
    tenant_held_bytes: int

    def allowed_bytes(self) -> int:
        """The most that may be granted now; 0 or less: nothing."""
        allowed = self.free_bytes - self.owed_bytes
        quota = self.quota
        if quota.ceiling_bytes:
            allowed = min(allowed, quota.ceiling_bytes - self.held_bytes)
        if quota.tenant_ceiling_bytes and self.tenant:
            allowed = min(allowed, quota.tenant_ceiling_bytes - self.tenant_held_bytes)
        return allowed

    def rule(self) -> str:
        """Which rule allows no more than `allowed_bytes`, with its numbers."""
        quota, allowed = self.quota, self.allowed_bytes()
        if allowed == self.free_bytes - self.owed_bytes:
            return f"{self.free_bytes} bytes are free, {self.owed_bytes} of them are other models' floors"
        if quota.ceiling_bytes and allowed == quota.ceiling_bytes - self.held_bytes:
            return f"{self.model} holds {self.held_bytes} bytes, its ceiling is {quota.ceiling_bytes}"
        return (
            f"tenant {self.tenant!r} holds {self.tenant_held_bytes} bytes of {self.model}, its ceiling is"
            f" {quota.tenant_ceiling_bytes}"
        )
