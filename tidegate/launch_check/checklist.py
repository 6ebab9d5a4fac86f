"""The whole checklist: gathers the evidence, and has each row decided."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from contracts.stack import Stack
from loadtest.planning.load import OpenLoop, Replay
from loadtest.planning.plan import Plan
from loadtest.planning.rates import RateCurve
from loadtest.planning.schedule import plan_schedule
from loadtest.planning.shapes import curve_of
from loadtest.running.machine import commit, describe_stack, fingerprint
from loadtest.running.result import RunResult
from loadtest.verdict import Row, Verdict
from scaler.serving.service_client import ScalerClient
from tidegate.launch_check import gather
from tidegate.launch_check.alerts import check_alerts
from tidegate.launch_check.backups import InForce, check_backups
from tidegate.launch_check.load_verdict import RunEvidence, check_load
from tidegate.launch_check.memory_room import LEAK_ROWS, NAME, check_memory
from tidegate.launch_check.row import CheckRow
from tidegate.launch_check.scaling import check_scaling
from tidegate.launch_check.way_back import RouteEvidence, check_way_back

REPLAY_BIN_S = 10.0
"""A replayed trace's rate, in bins of this."""


@dataclass(frozen=True, slots=True)
class Where:
    """What runs, as far as it is known."""

    stack: Stack | None
    ledger_url: str
    scaler: Callable[[], ScalerClient] | None
    """Made inside the event loop that uses it."""


async def check_all(plan: Plan, run: RunResult | None, where: Where, now_unix_s: float) -> list[CheckRow]:
    """`run`: the newest of this plan, judged again; None: there is none."""
    launch = plan.launch
    history = await asyncio.to_thread(gather.route_history, where.ledger_url)
    says = await gather.ask_scaler(where.scaler() if where.scaler else None)
    pinned = await gather.pinned_models(where.stack)
    described = await asyncio.to_thread(describe_stack, where.stack)
    copy = await asyncio.to_thread(gather.ledger_copy, launch.backups.ledger)
    answer, trouble = await asyncio.to_thread(gather.alert_answer, launch.prometheus)
    served, unpinnable = gather.served_by(where.stack)
    services = launch.way_back if launch.way_back is not None else services_of(plan)
    curve = rate_curve(plan)
    peak_per_s = launch.peak_per_s or (float(curve.rate_per_s.max()) if curve is not None else None)
    pinned = None if pinned is None else pinned | unpinnable
    routes = RouteEvidence(history.revisions, history.trouble, served, pinned)
    return [
        check_load(plan, evidence_of(run), commit(), fingerprint(described), now_unix_s),
        _memory(run, launch.memory_margin),
        check_scaling(gather.scaling_evidence(says, launch), curve, peak_per_s, launch.max_wait_s),
        check_way_back(services, routes, launch.rehearsed_within_h * 3600, now_unix_s),
        check_backups(launch.backups, _in_force(history, says), copy, now_unix_s),
        check_alerts(launch.prometheus, answer, trouble, launch.alerts),
    ]


def newest_run(parent: Path, name: str) -> Path | None:
    """The newest folder of that plan's runs, by the time in its name."""
    found = sorted(each for each in parent.glob(f"{name}-[0-9]*-[0-9]*") if each.is_dir())
    return found[-1] if found else None


def evidence_of(run: RunResult | None) -> RunEvidence | None:
    if run is None:
        return None
    facts = run.facts
    return RunEvidence(
        run.folder,
        run.plan,
        facts.started_unix_s,
        facts.machine.get("commit", ""),
        facts.fingerprint,
        run.judgement,
    )


def services_of(plan: Plan) -> tuple[str, ...]:
    return tuple(dict.fromkeys(user.service for user in plan.users))


def rate_curve(plan: Plan) -> RateCurve | None:
    """None: a closed loop, whose rate is what comes of it."""
    if isinstance(plan.load, OpenLoop):
        return curve_of(plan.load.shape)
    if not isinstance(plan.load, Replay):
        return None
    schedule = plan_schedule(plan)
    edges_s = np.append(np.arange(0.0, schedule.duration_s, REPLAY_BIN_S), schedule.duration_s)
    counts, _ = np.histogram(schedule.t_intended_s, edges_s)
    rates = counts / np.diff(edges_s)
    return RateCurve(np.repeat(edges_s, 2)[1:-1], np.repeat(rates, 2))


def _memory(run: RunResult | None, margin: float) -> CheckRow:
    if run is None:
        return CheckRow(NAME, Verdict.INVALID, "no run to look at; `tidegate loadtest PLAN` makes one")
    return check_memory(run.curve, margin, _leak(run))


def _leak(run: RunResult) -> Row | None:
    return next((row for row in run.judgement.rows if row.expression.startswith(LEAK_ROWS)), None)


def _in_force(history: gather.RouteHistory, says: gather.ScalerSays) -> InForce:
    revisions = history.revisions
    trouble = "; ".join(text for text in (history.trouble, says.trouble) if text)
    if revisions is None:
        return InForce(None, says.policy_text, None, trouble)
    newest = revisions[0] if revisions else None
    return InForce(newest.text if newest else "", says.policy_text, newest.number if newest else 0, trouble)
