"""What Triton was sent and has not finished. It takes nothing else of that model meanwhile, nor anything back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from scaler.acting.draining import Say
from scaler.errors import UpdateStuck
from scaler.finishing import to_its_end

_T = TypeVar("_T")

WAY_OUT = (
    "an initialize that does not return is ended by killing its stub on Triton's host (Triton then drops the "
    "update within a second), a standing queue by starting Triton with --rate-limit=execution_count"
)


@dataclass
class Update:
    """`is_given_up`: past its deadline; what it was to bring is no longer counted on."""

    wanted: int
    sent_s: float
    task: asyncio.Task[Any]
    is_given_up: bool = False


@dataclass
class Outstanding:
    """At most one a model."""

    say: Say
    _updates: dict[str, Update] = field(default_factory=dict)

    def get(self, model: str) -> Update | None:
        return self._updates.get(model)

    def check_free(self, model: str) -> None:
        """Raises UpdateStuck."""
        if sent := self._updates.get(model):
            age_s = time.monotonic() - sent.sent_s
            raise UpdateStuck(
                f"model {model!r}: Triton has had the update to {sent.wanted} instances for {age_s:.0f} s "
                f"and takes no other one before it ends; {WAY_OUT}"
            )

    async def send(self, model: str, wanted: int, work: Coroutine[Any, Any, _T], deadline_s: float) -> _T:
        """The work's result. Past `deadline_s` raises UpdateStuck; the work goes on, and its end is said.

        A cancel is heeded at the work's end or at the deadline.
        """
        task = asyncio.create_task(work)
        sent = self._updates[model] = Update(wanted, time.monotonic(), task)
        task.add_done_callback(lambda _: self._end(model, sent))
        await to_its_end(self._wait(task, deadline_s))
        if task.done():
            return task.result()
        sent.is_given_up = True
        raise UpdateStuck(
            f"model {model!r}: Triton has not finished the update to {wanted} instances within {deadline_s:g} s; "
            f"they are not counted on any more, those that serve go on; {WAY_OUT}"
        )

    async def _wait(self, task: asyncio.Task[Any], deadline_s: float) -> None:
        await asyncio.wait({task}, timeout=deadline_s)

    def _end(self, model: str, sent: Update) -> None:
        del self._updates[model]
        error = None if sent.task.cancelled() else sent.task.exception()
        if sent.is_given_up:
            outcome = f"ended: {error}" if error else "done after all"
            self.say(f"{model}: the update to {sent.wanted} instances that was given up is {outcome}")
