"""One writer, many readers, nobody waits: a reader that is too slow loses the oldest."""

from __future__ import annotations

import asyncio
from collections import deque
from types import TracebackType
from typing import Generic, TypeVar

T = TypeVar("T")


class Feed(Generic[T]):
    """Must be used from one event loop."""

    def __init__(self) -> None:
        self._readers: set[Subscription[T]] = set()
        self._is_closed = False

    def subscribe(self, max_items: int = 256) -> Subscription[T]:
        """Everything published from now on. Close it, or use it in `with`."""
        reader = Subscription(self, max_items)
        if self._is_closed:
            reader.close()
        else:
            self._readers.add(reader)
        return reader

    def publish(self, item: T) -> None:
        for reader in self._readers:
            reader._put(item)

    def close(self) -> None:
        """Every reader's iteration ends after what it has not read yet."""
        self._is_closed = True
        for reader in tuple(self._readers):
            reader.close()

    def _drop(self, reader: Subscription[T]) -> None:
        self._readers.discard(reader)


class Subscription(Generic[T]):
    """An async iterator for one reader. `num_lost`: items that it was too slow for."""

    def __init__(self, feed: Feed[T], max_items: int) -> None:
        self._feed = feed
        self._items: deque[T] = deque(maxlen=max_items)
        self._woken = asyncio.Event()
        self._is_closed = False
        self.num_lost = 0

    def __aiter__(self) -> Subscription[T]:
        return self

    async def __anext__(self) -> T:
        while not self._items:
            if self._is_closed:
                raise StopAsyncIteration
            self._woken.clear()
            await self._woken.wait()
        return self._items.popleft()

    def __enter__(self) -> Subscription[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._is_closed = True
        self._feed._drop(self)
        self._woken.set()

    def _put(self, item: T) -> None:
        if len(self._items) == self._items.maxlen:
            self.num_lost += 1
        self._items.append(item)
        self._woken.set()
