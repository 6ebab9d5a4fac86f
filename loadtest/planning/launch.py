"""What `tidegate launch-check` asks beside the load: how old evidence may be, where copies lie, who watches."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator

from loadtest.planning.load import PositiveRate, Seconds
from loadtest.planning.strict import Strict
from loadtest.planning.trace_file import FOLDER

Hours = Annotated[float, Field(gt=0, le=24 * 365)]
Share = Annotated[float, Field(ge=0, lt=1)]


def _beside_the_plan(path: Path | None, info: ValidationInfo) -> Path | None:
    folder = (info.context or {}).get(FOLDER)
    return path if path is None or folder is None else folder / path


class Backups(Strict):
    """Copies of what is in force. Relative paths begin at the plan."""

    routes: Path | None = None
    """routes.yaml."""
    policy: Path | None = None
    """The scaler's policy."""
    ledger: Path | None = None
    """Of the SQLite file, made by `sqlite3 ledger.db '.backup COPY'`."""
    max_age_h: Hours = 24.0
    """Of the ledger's copy. Routes and policy may be of any age, as long as they are what is in force."""

    _relative = field_validator("routes", "policy", "ledger")(_beside_the_plan)


class Launch(Strict):
    """Left out, a row has its default or is INVALID; never silently fine."""

    verdict_max_age_h: Hours = 24.0
    """Of the load test's run."""
    memory_margin: Share = 0.10
    """Of the KV cache and of the pool, what must stay free at the peak."""
    peak_per_s: PositiveRate | None = None
    """The estimated peak, which capacity must bear. None: the plan's highest rate."""
    capacity: Path | None = None
    """What `tidegate capacity` measured."""
    lead_time_s: Seconds | None = None
    """From the decision to scale out to serving. None: the policy's, else what the scaler has measured."""
    max_wait_s: Seconds = 2.0
    """How long requests may wait for instances that are starting, by the policy's lead and the plan's rise."""
    way_back: tuple[str, ...] | None = None
    """Services that must have a version to roll back to. None: all that the plan's users ask; []: none."""
    rehearsed_within_h: Hours = 24.0 * 30
    """A rollback that was last done longer ago counts as not rehearsed."""
    backups: Backups = Backups()
    prometheus: Annotated[str, Field(pattern=r"^https?://[^/\s]+/?$")] | None = None
    """Which has the alert rules."""
    alerts: tuple[Annotated[str, Field(min_length=1, max_length=200)], ...] = ()
    """Alerts that must be loaded, by name. None named: at least one."""

    _relative = field_validator("capacity")(_beside_the_plan)
