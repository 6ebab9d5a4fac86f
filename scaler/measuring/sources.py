"""Asks that never raise: one try per look, with a deadline, and a line when a source is gone or comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from scaler.errors import ModelUnknown

MIN_SILENCES = 3
"""In a row, before a line is said: on a busy machine one answer may be late, and the figures bear it."""

T = TypeVar("T")
Say = Callable[[str], None]


class Sources:
    """Knows which sources answer. None is how it says that one does not."""

    def __init__(self, timeout_s: float, say: Say) -> None:
        self._timeout_s = timeout_s
        self._say = say
        self._troubles: dict[str, str] = {}
        self._num_silences: dict[str, int] = {}

    @property
    def troubles(self) -> dict[str, str]:
        """Source -> what ails it, of those that did not answer when last asked."""
        return dict(self._troubles)

    async def ask(self, source: str, question: Awaitable[T]) -> T | None:
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await question
        except ModelUnknown:
            self._recover(source)  # an answer too: a model at zero instances is not loaded
        except TimeoutError:
            self._fail(source, f"no answer within {self._timeout_s:g} s")
        except Exception as exc:  # whatever ails one source must not stop the scaler
            self._fail(source, f"{type(exc).__name__}: {exc}")
        else:
            self._recover(source)
            return answer
        return None

    def _recover(self, source: str) -> None:
        self._troubles.pop(source, None)
        if self._num_silences.pop(source, 0) >= MIN_SILENCES:
            self._say(f"{source} answers again")

    def _fail(self, source: str, why: str) -> None:
        self._num_silences[source] = self._num_silences.get(source, 0) + 1
        if self._num_silences[source] == MIN_SILENCES:
            self._say(f"{source} does not answer ({why}); going on without it, asking again at each look")
        self._troubles[source] = why
