"""Which cached blocks make room: choices over the books of the models, which change nothing."""

from __future__ import annotations

from collections.abc import Mapping

from python_backend.node.ledger import ModelBooks
from python_backend.node.prefix import PublishedBlock
from python_backend.node.regions import Regions


def oldest_foreign_region(
    models: Mapping[str, ModelBooks], regions: Regions, model: str, older_than: int | None
) -> tuple[ModelBooks, list[PublishedBlock]] | None:
    """Another model's region in which everything is cached and was last used before `older_than`."""
    best: tuple[int, ModelBooks, list[PublishedBlock]] | None = None
    for name, books in models.items():
        if name == model:
            continue
        for region, cached in books.prefixes.cached_by_region():
            if len(cached) < regions.num_extents(region):
                continue
            last_used = next(reversed(cached.values())).last_used
            if (older_than is None or last_used < older_than) and (best is None or last_used < best[0]):
                best = (last_used, books, list(cached.values()))
    return None if best is None else best[1:]


def emptiest_region(
    models: Mapping[str, ModelBooks], regions: Regions, max_held_share: float = 1.0
) -> tuple[ModelBooks, list[PublishedBlock]] | None:
    """The cached blocks of the region in which the fewest bytes are held, and of those the most are free; at most
    this share of it may be held."""
    emptiest: tuple[int, int, ModelBooks, list[PublishedBlock]] | None = None
    for books in models.values():
        for region, cached in books.prefixes.cached_by_region():
            free_bytes = regions.free_bytes_in(region)
            unheld_bytes = free_bytes + len(cached) * books.block_bytes
            if unheld_bytes < (1 - max_held_share) * regions.size_of_region(region):
                continue
            if emptiest is None or (unheld_bytes, free_bytes) > emptiest[:2]:
                emptiest = (unheld_bytes, free_bytes, books, list(cached.values()))
    return None if emptiest is None else emptiest[2:]
