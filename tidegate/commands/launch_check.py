"""`tidegate launch-check`: may this launch?"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.commands.errors import CommandError
from tidegate.commands.ledger_connection import LedgerOption, ledger_url_of
from tidegate.commands.loadtest import PlanArgument, need_extra, read_plan
from tidegate.commands.options import JsonOption, RunDirOption
from tidegate.commands.running import find_stack
from tidegate.commands.scaler_connection import (
    AddressOption,
    CaOption,
    CertOption,
    Connection,
    KeyOption,
    TokenFileOption,
)
from tidegate.console import out, print_json

if TYPE_CHECKING:
    from loadtest.planning.plan import Plan
    from loadtest.running.result import RunResult
    from scaler.serving.service_client import ScalerClient


def launch_check(
    plan: PlanArgument,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--run", metavar="FOLDER", help="Of the load test's run (default: the newest of this plan)."
        ),
    ] = None,
    run_dir: RunDirOption = None,
    ledger_url: LedgerOption = None,
    address: AddressOption = "",
    ca: CaOption = None,
    cert: CertOption = None,
    key: KeyOption = None,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """May this launch? Load, memory, scaling, way back, alerts.

    What each row needs is said in the plan's section `launch`.

    Exit codes: 0 all PASS, 1 some FAIL, 2 some INVALID (no evidence; the row says how to get some).
    """
    need_extra()
    from tidegate.commands.loadtest_text import print_check
    from tidegate.launch_check.checklist import Where, check_all
    from tidegate.launch_check.row import worst

    checked, _ = read_plan(plan, ())
    run_dir = run_dir or checked.target.run_dir
    scaler = _scaler(Connection(address, ca, cert, key, token_file), run_dir)
    where = Where(find_stack(run_dir), _ledger(ledger_url, run_dir), scaler)
    import asyncio

    rows = asyncio.run(check_all(checked, _run(folder, checked), where, time.time()))
    verdict = worst([row.verdict for row in rows])
    if as_json:
        found = [{"name": row.name, "verdict": row.verdict.value, "evidence": row.evidence} for row in rows]
        print_json({"verdict": verdict.value, "plan": checked.name, "rows": found})
    else:
        print_check(out(), checked.name, rows, verdict)
    raise typer.Exit(verdict.exit_code)


def _run(folder: Path | None, plan: Plan) -> RunResult | None:
    """Judged again from its raw rows, for a verdict's file can be written by anybody. Raises CommandError."""
    from loadtest.running.errors import RunError
    from loadtest.running.folder import DEFAULT_PARENT
    from loadtest.running.result import conclude
    from tidegate.launch_check.checklist import newest_run

    found = folder or plan.run or newest_run(DEFAULT_PARENT, plan.name)
    if found is None or (folder is None and not found.exists()):
        return None
    try:
        return conclude(found, writes=False)
    except RunError as exc:
        raise CommandError(str(exc)) from exc


def _ledger(given: str | None, run_dir: Path | None) -> str:
    """ "": none is known, and the rows that need it say so."""
    try:
        return ledger_url_of(given, run_dir)
    except CommandError:
        if given:
            raise
        return ""


def _scaler(connection: Connection, run_dir: Path | None) -> Callable[[], ScalerClient] | None:
    stack = find_stack(run_dir)
    if not connection.address and (stack is None or not stack.scaler_grpc):
        return None
    return lambda: connection.client(run_dir)
