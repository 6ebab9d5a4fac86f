"""What context management has paid for once: summaries and embeddings of turns, by the hash of what they are of.

A tenant's entries are found by that tenant alone: how fast an answer comes must not tell what others asked.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Cache(Generic[Value]):
    """The least recently used entries go first."""

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._kept: OrderedDict[bytes, Value] = OrderedDict()

    def get(self, key: bytes) -> Value | None:
        if (found := self._kept.get(key)) is not None:
            self._kept.move_to_end(key)
        return found

    def put(self, key: bytes, value: Value) -> None:
        self._kept[key] = value
        self._kept.move_to_end(key)
        if len(self._kept) > self._max_entries:
            self._kept.popitem(last=False)


def hash_of(*parts: str) -> bytes:
    """Different parts never make the same text."""
    digest = hashlib.blake2b(digest_size=20)
    for part in parts:
        raw = part.encode(errors="surrogatepass")
        digest.update(len(raw).to_bytes(8, "little"))
        digest.update(raw)
    return digest.digest()
