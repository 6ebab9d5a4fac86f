"""Who calls, and what the caller may do. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import msgspec

Role = Literal["infer", "metrics", "admin"]
"""infer: call models. metrics: read figures and the call log. admin: everything, Triton's management calls too."""


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of one key, or of one service. None: no such limit. What both limit, both count."""

    requests_per_min: int | None = None
    """In any 60 seconds (a moving window)."""
    tokens_per_min: int | None = None
    """Prompt and output, in 60 seconds from the first one."""
    tokens_per_day: int | None = None
    """The budget, in 24 hours from the first one."""
    concurrent: int | None = None
    """Requests at a time, streams included."""
    max_context_tokens: int | None = None
    """Of one request: prompt and output."""
    max_output_tokens: int | None = None
    """Of one request; a request that asks for no number gets at most this."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} = {value}, must be at least 1 (leave it out for no limit)")


NO_LIMITS = Limits()


@dataclass(frozen=True)
class Principal:
    """A caller that was recognised."""

    key_id: str
    """"" when keys are off."""
    tenant: str
    roles: frozenset[str]
    services: frozenset[str] | None = None
    """None: all."""
    limits: Limits = field(default=NO_LIMITS)

    def may(self, role: Role) -> bool:
        return role in self.roles or "admin" in self.roles

    def may_use(self, service: str) -> bool:
        return self.services is None or service in self.services


ANONYMOUS = Principal(key_id="", tenant="", roles=frozenset({"infer", "metrics"}))
"""Everybody, while keys are off: may infer. Management needs the admin role, which nobody has then."""
