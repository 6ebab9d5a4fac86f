"""Asks that never raise: one try per look, with a deadline, and a line when a source goes or comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from scaler.errors import ModelUnknown

T = TypeVar("T")
Say = Callable[[str], None]


class Sources:
    """Knows which sources answer. None is how it says that one does not."""

    def __init__(self, timeout_s: float, say: Say) -> None:
        self._timeout_s = timeout_s
        self._say = say
        self._troubles: dict[str, str] = {}

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
        if self._troubles.pop(source, None) is not None:
            self._say(f"{source} answers again")

    def _fail(self, source: str, why: str) -> None:
        if source not in self._troubles:
            self._say(f"{source} does not answer ({why}); going on without it, asking again at each look")
        self._troubles[source] = why
