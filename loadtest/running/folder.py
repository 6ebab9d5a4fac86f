"""A run's folder: what it must never lose is written first, raw rows before anything is made of them.

`plan.yaml` as given, `requests.parquet`, `curve.parquet`, `run.json` (`Facts`); the reports come from these.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec

from contracts.checked_yaml import load_yaml
from contracts.stack import write_whole
from loadtest.curve import Curve
from loadtest.generating.parquet import RequestsUnreadable, read_requests, write_requests
from loadtest.planning.plan import Plan, PlanError, check_plan
from loadtest.records import Requests, columns_of
from loadtest.reporting.result import ScalingChange
from loadtest.running.errors import FolderTaken, FolderUnreadable
from loadtest.watching.parquet import CurveUnreadable, read_curve, write_curve

PLAN, REQUESTS, CURVE, FACTS = "plan.yaml", "requests.parquet", "curve.parquet", "run.json"
DEFAULT_PARENT = Path("runs")


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What neither rows nor samples say of a run."""

    name: str
    started_unix_s: float
    """t0 on the wall clock; of a run that never began, when it was given up."""
    ended_s: float = 0.0
    """After t0, the drain included."""
    seed: int = 0
    machine: dict[str, str] = {}
    stack: dict[str, Any] = {}
    fingerprint: str = ""
    """Of `stack`, for comparing."""
    problems: list[str] = []
    """Any of them makes the run INVALID."""
    notes: list[str] = []
    processes: list[dict[str, Any]] = []
    """How well each generator process kept its times."""
    changes: list[ScalingChange] = []


def default_folder(plan: Plan, now_unix_s: float) -> Path:
    """`runs/NAME-20261201-120000`, in local time."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now_unix_s))
    return plan.run or DEFAULT_PARENT / f"{plan.name}-{stamp}"


def create_folder(path: Path) -> None:
    """Raises FolderTaken, OSError."""
    path.mkdir(parents=True, exist_ok=True)
    if any(path.iterdir()):
        raise FolderTaken(f"{path} is not empty; name another folder with --out, or remove it")


def write_raw(path: Path, requests: Requests | None, curve: Curve | None, facts: Facts) -> None:
    """Each file appears whole or not at all. Raises OSError."""
    if requests is not None:
        write_requests(path / REQUESTS, requests)
    if curve is not None:
        write_curve(path / CURVE, curve)
    write_whole(path / FACTS, msgspec.json.format(msgspec.json.encode(facts), indent=1))


def read_raw(path: Path) -> tuple[Plan, Requests, Curve, Facts]:
    """What a run left; rows and samples that it had no time to write are none. Raises FolderUnreadable."""
    try:
        facts = msgspec.json.decode((path / FACTS).read_bytes(), type=Facts)
        plan = check_plan(load_yaml((path / PLAN).read_text()), path)
        requests = read_requests(path / REQUESTS) if (path / REQUESTS).exists() else columns_of([])
        curve = read_curve(path / CURVE) if (path / CURVE).exists() else Curve((), ())
    except FileNotFoundError as exc:
        raise FolderUnreadable(
            f"{exc.filename} is missing; is {path} the folder of a `tidegate loadtest` run?"
        ) from exc
    except (OSError, PlanError, ValueError, RequestsUnreadable, CurveUnreadable, msgspec.MsgspecError) as exc:
        raise FolderUnreadable(f"{path} can't be read as a run: {exc}") from exc
    return plan, requests, curve, facts
