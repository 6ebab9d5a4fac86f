"""When this node is full, what is wanted beyond it goes to somebody else: Kubernetes, or KEDA on our word.

A scale-out fills the node first: its instances share weights and start in a fraction of a second. A scale-in takes
from beyond first, for the same reason. No change ever does both, so room that comes and goes on the node moves
nothing to and fro.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from scaler.acting.target import ScaleResult, Target
from scaler.deciding.observation import Counts
from scaler.errors import CountsUnknown


@dataclass(frozen=True)
class Split:
    here: int
    beyond: int


def split(wanted: int, here: int, beyond: int, room: int | None) -> Split:
    """`here` and `beyond` are what there is now, ready or starting; `room` more fit here, None: any number."""
    more = wanted - here - beyond
    if more >= 0:
        more_here = more if room is None else min(more, room)
        return Split(here + more_here, beyond + more - more_here)
    fewer_beyond = min(-more, beyond)
    return Split(here + more + fewer_beyond, beyond - fewer_beyond)


class Handover:
    """A Target over two. Its counts are those of both together, with room as there is beyond.

    `max_here`: by model, how many are enough for this node; None: as many as fit.
    While nobody can count beyond, the last known count stands and the node is all the room there is: an outage
    there must not stop scaling here.
    """

    def __init__(
        self,
        here: Target,
        beyond: Target,
        *,
        max_here: Callable[[str], int | None] = lambda model: None,
    ) -> None:
        self._here = here
        self._beyond = beyond
        self._max_here = max_here
        self._last_beyond: dict[str, Counts] = {}

    async def counts(self, model: str) -> Counts | None:
        here, beyond = await self._look(model)
        known = self._known(model, beyond)
        if here is None or known is None:
            return None
        return Counts(
            ready=here.ready + known.ready,
            starting=here.starting + known.starting,
            draining=here.draining + known.draining,
            room=here.room if beyond is None else beyond.room,
        )

    async def scale(self, model: str, wanted: int, reason: str) -> ScaleResult:
        """Both parts at once; the failure of one does not stop the other, and is raised when that has ended."""
        here, beyond = await self._look(model)
        beyond = self._known(model, beyond)
        if here is None or beyond is None:
            raise CountsUnknown(
                f"{model!r} cannot be counted {'here' if here is None else 'beyond this node'} now"
            )
        parts = split(wanted, here.total, beyond.total, here.room)
        changes = []
        if parts.here != here.total:
            changes.append(self._here.scale(model, parts.here, reason))
        if parts.beyond != beyond.total:
            changes.append(self._beyond.scale(model, parts.beyond, reason))
        results = await asyncio.gather(*changes, return_exceptions=True)
        failures = [result for result in results if isinstance(result, BaseException)]
        if failures:
            raise failures[0]
        done = [result for result in results if isinstance(result, ScaleResult)]
        return ScaleResult(
            model,
            here.total + beyond.total,
            parts.here + parts.beyond,
            max((result.seconds for result in done), default=0.0),
            in_place=all(result.in_place is not False for result in done),
            detail=f"here {here.total}→{parts.here}, beyond {beyond.total}→{parts.beyond}",
        )

    async def _look(self, model: str) -> tuple[Counts | None, Counts | None]:
        here, beyond = await asyncio.gather(self._here.counts(model), self._beyond.counts(model))
        most = self._max_here(model)
        if here is not None and most is not None:
            left = max(0, most - here.total)
            here = replace(here, room=left if here.room is None else min(left, here.room))
        return here, beyond

    def _known(self, model: str, now: Counts | None) -> Counts | None:
        if now is not None:
            self._last_beyond[model] = now
        return self._last_beyond.get(model)
