"""The console's one button: all calls back to the version before, as `tidegate rollout rollback` does."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

import msgspec

from gateway import rollout
from gateway.errors import GatewayError, InternalError, InvalidRequest, shown
from gateway.route_table import KIND
from gateway.routes import Routes, RoutesInvalid
from ledger.errors import LedgerError, RevisionMoved
from ledger.revisions import RevisionStore


class RoutesMoved(GatewayError):
    """Somebody has changed the routes since the page was drawn."""

    status = 409
    type = "invalid_request_error"
    code = "routes_moved"


class RollbackRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`revision`: of the routes that the page showed."""

    service: str
    revision: int


def parse(body: bytes) -> RollbackRequest:
    """Raises InvalidRequest."""
    try:
        return msgspec.json.decode(body, type=RollbackRequest)
    except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
        raise InvalidRequest(f"the body is not {{service, revision}}: {exc}") from exc


async def roll_back(
    revisions: RevisionStore | None, models: Collection[str], asked: RollbackRequest, who: str
) -> dict[str, Any]:
    """The new revision. Raises InvalidRequest, RoutesMoved, InternalError; nothing has changed then."""
    if revisions is None:
        raise InvalidRequest("this gateway has no ledger, so there are no routes to roll back")
    try:
        number = await asyncio.to_thread(_put, revisions, models, asked, who)
    except RevisionMoved as exc:
        raise RoutesMoved(f"{exc}; look again") from exc
    except LedgerError as exc:
        raise InternalError(f"the routes can't be written: {exc}") from exc
    return {"service": asked.service, "revision": number}


def _put(revisions: RevisionStore, models: Collection[str], asked: RollbackRequest, who: str) -> int:
    latest = revisions.latest(KIND)
    document = rollout.read(latest.text if latest else "")
    if asked.service not in (document.get("services") or {}):
        raise InvalidRequest(
            f"{shown(asked.service)} is not in the routes, so it has no version to go back to", "service"
        )
    try:
        after = rollout.roll_back(document, asked.service)
        Routes.check(after, models)
    except rollout.RolloutRefused as exc:
        raise InvalidRequest(str(exc), "service") from exc
    except RoutesInvalid as exc:
        raise InvalidRequest("; ".join(exc.problems)) from exc
    why = f"{asked.service}: rolled back in the console"
    return revisions.put(KIND, rollout.write(after), who, why=why, expected=asked.revision)
