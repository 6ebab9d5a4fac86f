"""The routes in force, swapped whole when a new revision is in the ledger; and who was sent where."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from pathlib import Path

from gateway.routes import Routes, RoutesInvalid
from gateway.routing import Target, choose
from ledger.errors import LedgerError, RevisionMoved
from ledger.revisions import RevisionStore

logger = logging.getLogger("gateway.routes")

KIND = "routes"
POLL_S = 0.3
"""A rollback is in force everywhere after at most so long."""
FILE_POLL_S = 1.0
MAX_SESSIONS = 100_000
SESSION_IDLE_S = 3600.0
"""A session that says nothing for so long may be sent elsewhere."""


class Sessions:
    """Which version each session has had. The oldest are forgotten beyond `MAX_SESSIONS`."""

    def __init__(self) -> None:
        self._kept: OrderedDict[bytes, tuple[str, float]] = OrderedDict()

    def of(self, service: str, session: str, now: float) -> str | None:
        found = self._kept.get(_digest(service, session))
        return None if found is None or now - found[1] > SESSION_IDLE_S else found[0]

    def keep(self, service: str, session: str, version: str, now: float) -> None:
        key = _digest(service, session)
        self._kept[key] = (version, now)
        self._kept.move_to_end(key)
        if len(self._kept) > MAX_SESSIONS:
            self._kept.popitem(last=False)


def _digest(service: str, session: str) -> bytes:
    """Clients choose their sessions, 100 kB long if they like: what is kept of each must not depend on that."""
    return hashlib.blake2b(f"{service}\0{session}".encode(errors="surrogateescape"), digest_size=16).digest()


class RouteTable:
    """Every method answers from memory. `is_saturated` tells of a Triton model what the scaler says of it."""

    def __init__(
        self,
        models: Collection[str],
        *,
        is_saturated: Callable[[str], bool] = lambda model: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._models = models
        self._is_saturated = is_saturated
        self._clock = clock
        self._routes = Routes()
        self._sessions = Sessions()
        self.revision = 0
        """0: every served model is a service of its own."""

    @property
    def services(self) -> list[str]:
        """Those that the routes name, and the served models; a model that is only a part of a service too, so that
        it can be tried by its name."""
        return list(dict.fromkeys([*self._routes.services, *self._models]))

    @property
    def routes(self) -> Routes:
        return self._routes

    def put(self, text: str, revision: int) -> None:
        """From the next call on. Raises RoutesInvalid; what was in force stays then."""
        self._routes = Routes.parse(text, self._models)
        self.revision = revision

    def is_saturated(self, service: str) -> bool:
        """Do all models among which the service is split have too much to do?"""
        for version in self._routes.of(service).versions:
            if version.percent > 0 and not self._is_saturated(version.model_name):
                return False
        return True

    def choose(
        self, service: str, *, tenant: str, session: str, is_sticky: bool, num_prompt_tokens: int
    ) -> tuple[Target, int]:
        """Where to, and the revision that says so."""
        now = self._clock()
        target = choose(
            service,
            self._routes.of(service),
            tenant=tenant,
            session=session,
            num_prompt_tokens=num_prompt_tokens,
            is_saturated=self.is_saturated(service),
            kept=self._sessions.of(service, session, now) if is_sticky else None,
        )
        if is_sticky and target.is_split:
            self._sessions.keep(service, session, target.version_name, now)
        return target, self.revision

    async def follow(self, revisions: RevisionStore) -> None:
        """Until cancelled. While the database is down the routes stay as they are."""
        seen, is_down = self.revision, False
        while True:
            try:
                latest = await revisions.wait(KIND, seen, poll_s=POLL_S)
                is_down = False
            except LedgerError as exc:
                if not is_down:
                    logger.warning("routes can't be read, revision %d stays: %s", self.revision, exc)
                is_down = True
                await asyncio.sleep(POLL_S)
                continue
            seen = latest.number
            try:
                self.put(latest.text, latest.number)
            except RoutesInvalid as exc:
                logger.error("revision %d is not taken, %d stays: %s", latest.number, self.revision, exc)
            else:
                logger.info("routes: revision %d by %s: %s", latest.number, latest.who, latest.why or "-")


class RoutesFile:
    """routes.yaml as a way to make revisions: what it says new goes into the ledger, and comes back from there.

    What it said last stands in the ledger too, so a restart does not undo a rollback, and of several gateways with
    the same file one puts it.
    """

    def __init__(self, path: Path, models: Collection[str], revisions: RevisionStore) -> None:
        self._path = path
        self._models = models
        self._revisions = revisions
        self._kind = f"{KIND} of {path}"
        self._refused = ""

    def look(self) -> int | None:
        """The new revision's number, or None when the file says nothing new. Raises RoutesInvalid (once for each
        text), OSError, LedgerError."""
        text = self._path.read_text()
        last = self._revisions.latest(self._kind)
        if text == self._refused or (last is not None and text == last.text):
            return None
        try:
            Routes.parse(text, self._models)
        except RoutesInvalid:
            self._refused = text
            raise
        who = str(self._path)
        expected = last.number if last else 0
        try:
            return self._revisions.put_from(
                self._kind, KIND, text, who, why="the file has changed", expected=expected
            )
        except RevisionMoved:
            return None

    async def follow(self) -> None:
        """Until cancelled. What keeps it from looking is said once, not every second."""
        said = ""
        while True:
            try:
                await asyncio.to_thread(self.look)
                said = ""
            except RoutesInvalid as exc:
                for problem in exc.problems:
                    logger.error("%s is not taken: %s", self._path, problem)
            except (OSError, UnicodeDecodeError, LedgerError) as exc:
                if said != (said := str(exc)):
                    logger.warning("%s is not looked at: %s", self._path, exc)
            await asyncio.sleep(FILE_POLL_S)
