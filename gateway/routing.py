"""Where a call goes: which model of its service, and why. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.routes import ServiceRoute, Version


@dataclass(frozen=True)
class Target:
    """What was chosen for one call."""

    model: str
    """Triton's model."""
    version_name: str
    """The routes' name of it."""
    why: str
    """"split 5 %", "long context: 5,012 > 4,096 tokens", "tenant acme", "degraded: saturated", "only version"."""
    max_output_tokens: int | None = None
    """A degraded answer may have to be shorter."""
    shadow: str | None = None
    """A model that gets a copy of the call; its answer is thrown away."""
    is_split: bool = False
    """The percentages decided: a session stays with it."""


def choose(
    name: str,
    route: ServiceRoute,
    *,
    tenant: str,
    session: str,
    num_prompt_tokens: int,
    is_saturated: bool,
    kept: str | None = None,
) -> Target:
    """The tenant's own model, then the one for long prompts, then what a saturated service degrades to, then the
    split.

    `session` decides the split: the same one goes to the same version, and a percentage that is raised only moves
    what the others lose. `kept`: the version that this session has had; it stays as long as it has any share.
    """
    shadow = _shadow(name, route, session)
    if (own := route.tenants.get(tenant)) is not None:
        return Target(own, own, f"tenant {tenant}", shadow=shadow)
    limit = route.long_context
    if limit is not None and num_prompt_tokens > limit.above_tokens:
        why = f"long context: {num_prompt_tokens:,} > {limit.above_tokens:,} tokens"
        return Target(limit.target, limit.target, why, shadow=shadow)
    version = _version(name, route.versions, session, kept)
    if is_saturated and route.degrade is not None:
        model, shown = version.model_name, version.name
        if route.degrade.target is not None:
            model = shown = route.degrade.target
        # No copies while there is too much already.
        return Target(model, shown, "degraded: saturated", route.degrade.max_output_tokens)
    why = "only version" if len(route.versions) == 1 else f"split {version.percent:g} %"
    return Target(version.model_name, version.name, why, shadow=shadow, is_split=True)


def position(name: str, session: str) -> float:
    """0 to below 100, the same for the same service and session everywhere, spread evenly."""
    digest = hashlib.blake2b(f"{name}\0{session}".encode(errors="surrogateescape"), digest_size=8).digest()
    return (int.from_bytes(digest) >> 11) / 2**53 * 100  # 53 bits: what a float holds, so never 100


def _version(name: str, versions: Sequence[Version], session: str, kept: str | None) -> Version:
    for version in versions:
        if version.name == kept and version.percent > 0:
            return version
    if len(versions) == 1:
        return versions[0]
    at, end = position(name, session), 0.0
    for version in versions:
        end += version.percent
        if at < end:
            return version
    # Sums of floats may fall a hair short of 100.
    return next(version for version in reversed(versions) if version.percent > 0)


def _shadow(name: str, route: ServiceRoute, session: str) -> str | None:
    if route.shadow is None or position(f"{name}\0shadow", session) >= route.shadow.percent:
        return None
    return route.shadow.target
