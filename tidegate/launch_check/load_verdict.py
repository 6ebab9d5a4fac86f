"""Row "load": a run of this very plan, on this code and this stack, not long ago, that passed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from loadtest.planning.plan import Plan
from loadtest.verdict import Judgement, Verdict
from tidegate.launch_check.row import CheckRow, ago, joined

NAME = "load"


@dataclass(frozen=True, slots=True)
class RunEvidence:
    """A run, judged again from its raw rows."""

    folder: Path
    plan: Plan
    started_unix_s: float
    commit: str
    fingerprint: str
    """Of the stack's models and pool (`loadtest.running.machine`)."""
    judgement: Judgement


def check_load(
    plan: Plan, run: RunEvidence | None, commit: str, fingerprint: str, now_unix_s: float
) -> CheckRow:
    """`commit`, `fingerprint`: of what would launch, "" where it is not known."""
    if run is None:
        return CheckRow(
            NAME, Verdict.INVALID, f"no run of {plan.name} was found; `tidegate loadtest PLAN` makes one"
        )
    age_s = now_unix_s - run.started_unix_s
    max_age_h = plan.launch.verdict_max_age_h
    again = "run `tidegate loadtest PLAN` again"
    findings = [_verdict_of(run, ago(age_s))]
    if age_s > max_age_h * 3600:
        findings.append((Verdict.INVALID, f"it is older than verdict_max_age_h = {max_age_h:g}: {again}"))
    if differing := differences(plan, run.plan):
        findings.append(
            (Verdict.INVALID, f"it ran another plan ({', '.join(differing)} differ from this one): {again}")
        )
    findings += [
        _same("commit", run.commit, commit, again),
        _same("the stack's models and pool", run.fingerprint, fingerprint, again),
    ]
    return joined(NAME, findings)


def differences(plan: Plan, other: Plan) -> list[str]:
    """Which parts of the load or its limits are not the same."""
    parts = ("seed", "load", "users", "warm_up", "drain_s", "slo")
    return [part for part in parts if getattr(plan, part) != getattr(other, part)]


def _verdict_of(run: RunEvidence, when: str) -> tuple[Verdict, str]:
    rows = run.judgement.rows
    verdict = run.judgement.verdict
    bad = [row for row in rows if row.verdict is verdict and verdict is not Verdict.PASS]
    text = f"{run.folder.name}, {when}, ended {verdict.value} ({len(rows)} rows)"
    if bad:
        text += ": " + "; ".join(f"{row.expression}: {row.why}" for row in bad[:3])
        text += f"; and {len(bad) - 3} more" if len(bad) > 3 else ""
    return verdict, text


def _same(what: str, of_run: str, now: str, again: str) -> tuple[Verdict, str]:
    if not of_run or not now:
        whose = "the run" if not of_run else "what runs now"
        return (
            Verdict.INVALID,
            f"{what} of {whose} is not known, so the run may be of something else: {again}",
        )
    if of_run != now:
        return Verdict.INVALID, f"{what} was {of_run} and is {now}: {again}"
    if what == "commit" and now.endswith("-dirty"):
        return (
            Verdict.INVALID,
            f"{what} {now}: files differ from it, so equal names prove nothing; commit them",
        )
    return Verdict.PASS, f"{what} is the same ({now})"
