"""What the scaler decided during a day, and how long its scale-outs took to serve."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from benchmarks.tide_load import Call
from scaler.errors import ScaleError
from scaler.serving.service_client import ScalerClient


@dataclass(frozen=True)
class Event:
    """One decision that changed something, or had another cause than the one before."""

    at_s: float
    before: int
    wanted: int
    direction: str
    cause: str
    reason: str

    @property
    def is_change(self) -> bool:
        return self.wanted != self.before

    @property
    def is_pressed(self) -> bool:
        """Is an out threshold crossed? Only those are told with this sign."""
        return "≥" in self.reason


@dataclass(frozen=True)
class Reaction:
    """One scale-out. Times in seconds of the day."""

    due_s: float
    """When the rule's hold and the cooldown had both ended."""
    decided_s: float
    serving_s: float
    """When the last of the new instances began its first batch."""

    @property
    def seconds(self) -> float:
        return self.serving_s - self.due_s


@contextlib.asynccontextmanager
async def watching(address: str, model: str, say: Callable[[str], None]) -> AsyncIterator[list[Event]]:
    """The scaler's decisions until the block ends, by `time.monotonic()`; says each that changes something."""
    client = ScalerClient(address)
    events: list[Event] = []
    unix_to_monotonic_s = time.monotonic() - time.time()

    async def watch() -> None:
        with contextlib.suppress(ScaleError):
            async for each in client.watch([model]):
                at_s = each.at_unix_s + unix_to_monotonic_s
                event = Event(at_s, each.before, each.wanted, each.direction, each.cause, each.reason)
                events.append(event)
                if event.is_change:
                    say(event.reason)

    task = asyncio.create_task(watch())
    try:
        yield events
    finally:
        task.cancel()
        await asyncio.wait({task})
        await client.close()


def reactions(
    events: Sequence[Event], calls: Sequence[Call], hold_s: float, cooldown_out_s: float
) -> list[Reaction]:
    """The scale-outs by a threshold whose new workers all served before the next change.

    A worker that had nothing to do at first makes a reaction longer, never shorter.
    """
    first_batches: dict[int, float] = {}
    for call in calls:
        begun_s = first_batches.get(call.worker_pid, call.started_s)
        first_batches[call.worker_pid] = min(begun_s, call.started_s)
    changes = [event for event in events if event.is_change]
    found = []
    for number, out in enumerate(changes):
        if out.cause != "pressure":
            continue
        next_s = changes[number + 1].at_s if number + 1 < len(changes) else math.inf
        new_s = sorted(first_s for first_s in first_batches.values() if out.at_s < first_s < next_s)
        num_added = out.wanted - out.before
        if len(new_s) < num_added:
            continue
        cooled_s = [change.at_s + cooldown_out_s for change in changes[:number] if change.direction == "out"]
        due_s = max(crossed_since_s(events, out) + hold_s, *cooled_s[-1:], -math.inf)
        found.append(Reaction(due_s, out.at_s, new_s[num_added - 1]))
    return found


def crossed_since_s(events: Sequence[Event], out: Event) -> float:
    """Since when a threshold was crossed without a break, up to the decision `out`; a change begins anew."""
    since_s = out.at_s
    for event in reversed([event for event in events if event.at_s < out.at_s]):
        if event.is_change or not event.is_pressed:
            break
        since_s = event.at_s
    return since_s
