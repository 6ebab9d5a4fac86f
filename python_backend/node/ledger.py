"""What each model holds, and the sums over all of them: kept at each change, so that no lease adds anything up."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from python_backend.node.errors import PoolInconsistent
from python_backend.node.prefix import PrefixIndex
from python_backend.node.quota import ModelQuota, Standing


@dataclass
class ModelBooks:
    """What the pool counts of one model."""

    model: str
    block_bytes: int
    quota: ModelQuota
    prefixes: PrefixIndex = field(default_factory=PrefixIndex)
    leased_bytes: int = 0
    leased_by_tenant: Counter[str] = field(default_factory=Counter)
    num_refused: int = 0
    settled_bytes: int = 0
    """`held_bytes`, as the ledger's sums have it."""

    @property
    def held_bytes(self) -> int:
        return self.leased_bytes + self.prefixes.num_read * self.block_bytes

    def lacking_bytes(self, held_bytes: int) -> int:
        """What its floor still owes it."""
        return max(0, self.quota.floor_bytes - held_bytes)


class HighWater:
    """The most that was held since one reader's last look. Each reader has its own."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._total_bytes = 0
        self._of_model: dict[str, int] = {}
        self.take()
        ledger.marks.add(self)

    def note(self, model: str, held_bytes: int, total_bytes: int) -> None:
        self._total_bytes = max(self._total_bytes, total_bytes)
        self._of_model[model] = max(self._of_model.get(model, 0), held_bytes)

    def take(self) -> tuple[int, dict[str, int]]:
        """All models' at once, and each model's; from here on it counts anew from what is held now."""
        taken = self._total_bytes, self._of_model
        self._total_bytes = self._ledger.held_bytes
        self._of_model = {name: books.settled_bytes for name, books in self._ledger.models.items()}
        return taken

    def close(self) -> None:
        self._ledger.marks.discard(self)


class Ledger:
    """Whoever changes what a model holds calls `settle` for it before anyone asks for a standing."""

    def __init__(self, total_bytes: int) -> None:
        self.models: dict[str, ModelBooks] = {}
        self.held_bytes = 0
        self.high_water_bytes = 0
        self.marks: set[HighWater] = set()
        self._total_bytes = total_bytes
        self._lacking_bytes = 0

    def add(self, books: ModelBooks) -> None:
        self.models[books.model] = books
        self._lacking_bytes += books.lacking_bytes(0)

    def remove(self, model: str) -> None:
        """It holds nothing any more."""
        self._lacking_bytes -= self.models.pop(model).lacking_bytes(0)

    def settle(self, books: ModelBooks) -> None:
        """Bring the sums up to what the model holds now."""
        before, now = books.settled_bytes, books.held_bytes
        if before == now:
            return
        books.settled_bytes = now
        self.held_bytes += now - before
        if books.quota.floor_bytes:
            self._lacking_bytes += books.lacking_bytes(now) - books.lacking_bytes(before)
        if self.held_bytes > self.high_water_bytes:
            self.high_water_bytes = self.held_bytes
        if now > before:
            for mark in self.marks:
                mark.note(books.model, now, self.held_bytes)

    def standing(self, books: ModelBooks, tenant: str) -> Standing:
        read_bytes = books.prefixes.num_read_of(tenant) * books.block_bytes
        return Standing(
            books.model,
            tenant,
            books.quota,
            self._total_bytes - self.held_bytes,
            self._lacking_bytes - books.lacking_bytes(books.settled_bytes),
            books.settled_bytes,
            books.leased_by_tenant[tenant] + read_bytes,
        )

    def limit_bytes(self, books: ModelBooks) -> int:
        """The most that the model could ever hold: its ceiling, or what the floors of others leave it."""
        floors = sum(other.quota.floor_bytes for other in self.models.values() if other is not books)
        limit = max(0, self._total_bytes - floors)
        return min(limit, books.quota.ceiling_bytes or limit)

    def check(self) -> None:
        """Raises PoolInconsistent unless the sums are what adding up gives."""
        held = sum(books.held_bytes for books in self.models.values())
        lacking = sum(books.lacking_bytes(books.held_bytes) for books in self.models.values())
        if (held, lacking) != (self.held_bytes, self._lacking_bytes):
            raise PoolInconsistent(
                f"the models hold {held} bytes and their floors lack {lacking}, the ledger says"
                f" {self.held_bytes} and {self._lacking_bytes}"
            )
        for books in self.models.values():
            if books.settled_bytes != books.held_bytes:
                raise PoolInconsistent(
                    f"{books.model} holds {books.held_bytes} bytes, the ledger says {books.settled_bytes}"
                )
