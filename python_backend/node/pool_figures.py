"""What the pool answers and tells: plain values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Refused:
    """No lease: what a smaller request would get, and what stands in the way."""

    largest_blocks: int
    reason: str
    obtainable_blocks: int = 0
    """What smaller requests would get together, at most: what the rules leave."""
    is_in_pieces: bool = False
    """As much as was wanted is free, in smaller extents."""


@dataclass(frozen=True)
class PoolStats:
    total_bytes: int
    leased_bytes: int
    published_bytes: int
    """Prefix blocks, read or cached."""
    cached_bytes: int
    free_bytes: int
    largest_free_bytes: int
    high_water_bytes: int
    """Most bytes ever held (leased or read) at once since the node started."""
    num_failed_checks: int
    """How often the books did not add up."""


@dataclass(frozen=True)
class ModelStats:
    block_bytes: int
    leased_bytes: int
    published_bytes: int
    cached_bytes: int
    usable_blocks: int
    """Blocks that it could lease now, one by one: free ones, and its own cached ones."""
    lookup_blocks: int
    hit_blocks: int
    num_refused: int
    leased_by_tenant: dict[str, int]
    published_by_tenant: dict[str, int]


@dataclass(frozen=True)
class PoolExtent:
    """A piece of the arena that is not free."""

    offset: int
    nbytes: int
    model: str
    tenant: str
    state: str
    """ "leased", "published" (being read) or "cached"."""
    owner: int
