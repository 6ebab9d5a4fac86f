"""What becomes of the routes file of a running stack: taken, or refused with what is wrong.

The same check as the gateway's, over the same file, models and ledger; so it says the same, with no gateway asked.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from contracts.stack import Stack
from gateway.config import ConfigError, read_config
from gateway.route_table import KIND
from gateway.routes import Routes, RoutesInvalid
from ledger.errors import LedgerError
from ledger.revisions import RevisionStore
from ledger.store import Store


@dataclass(frozen=True)
class RoutesStatus:
    revision: int = 0
    """In force; 0: none, every model is a service of its own."""
    who: str = ""
    why: str = ""
    path: str = ""
    """Of the file that is followed; "": none is."""
    problems: list[str] = field(default_factory=list)
    """Of the file as it is now: it is not taken."""
    is_pending: bool = False
    """The file is good, and not in the ledger yet: a second at most."""


def served_models(stack: Stack) -> set[str]:
    """Those that routes may name. Raises ConfigError."""
    config = read_config(Path(stack.run_dir) / "gateway.json")
    return {model.name for model in config.models} | set(config.batch_models)


def problems_of(path: Path, models: Collection[str]) -> list[str]:
    """One line each; [] when it can be taken."""
    try:
        Routes.parse(path.read_text(), models)
    except RoutesInvalid as exc:
        return exc.problems
    except (OSError, UnicodeDecodeError) as exc:
        return [f"it can't be read: {exc}"]
    return []


def routes_status(stack: Stack) -> RoutesStatus:
    """Raises ConfigError, LedgerError."""
    config = read_config(Path(stack.run_dir) / "gateway.json")
    if not config.ledger_url:
        return RoutesStatus()
    store = Store.open(config.ledger_url)
    try:
        revisions = RevisionStore(store)
        latest = revisions.latest(KIND)
        taken = revisions.latest(f"{KIND} of {config.routes_path}") if config.routes_path else None
    finally:
        store.close()
    found = RoutesStatus(path=config.routes_path)
    if latest is not None:
        found = RoutesStatus(latest.number, latest.who, latest.why, config.routes_path)
    if not config.routes_path:
        return found
    problems = problems_of(Path(config.routes_path), served_models(stack))
    is_new = not problems and (taken is None or taken.text != Path(config.routes_path).read_text())
    return RoutesStatus(found.revision, found.who, found.why, found.path, problems, is_new)


def refused_edits(stack: Stack) -> list[str]:
    """For `tidegate status`: what is wrong with the routes file, if anything is."""
    if not stack.gateway_http:
        return []
    try:
        found = routes_status(stack)
    except (ConfigError, LedgerError, OSError, msgspec.MsgspecError) as exc:
        return [f"the routes can't be looked at: {exc}"]
    return [
        f"{found.path} is not taken, revision {found.revision} stays: {problem}" for problem in found.problems
    ]
