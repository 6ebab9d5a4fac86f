"""Row "rollback": every service has a version to go back to, ready, and somebody has gone back lately."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gateway import rollout
from ledger.revisions import Revision
from loadtest.verdict import Verdict
from tidegate.launch_check.row import CheckRow, ago, joined

NAME = "rollback"


@dataclass(frozen=True, slots=True)
class RouteEvidence:
    """`history`: revisions of the routes, newest first; None: no ledger could be read, `trouble` says why."""

    history: Sequence[Revision] | None
    trouble: str
    served: Collection[str]
    """Triton models of the running stack."""
    pinned: Collection[str] | None
    """Those whose weights stay in memory; None: not known."""


def check_way_back(
    services: Sequence[str], evidence: RouteEvidence, rehearsed_within_s: float, now_unix_s: float
) -> CheckRow:
    if not services:
        return CheckRow(NAME, Verdict.PASS, "way_back: [] asks for none")
    if evidence.history is None:
        return CheckRow(NAME, Verdict.INVALID, evidence.trouble)
    findings = []
    for service in services:
        route = _route(service, evidence)
        findings.append(route)
        if route[0] is Verdict.PASS:
            findings.append(_rehearsal(service, evidence.history, rehearsed_within_s, now_unix_s))
    return joined(NAME, findings)


def _route(service: str, evidence: RouteEvidence) -> tuple[Verdict, str]:
    document = rollout.read(evidence.history[0].text) if evidence.history else {}
    found = rollout.status(document, service)
    previous = found["previous"]
    if previous is None:
        return Verdict.FAIL, (
            f"{service} has no previous version in the routes; serve one beside it, then "
            f"`tidegate rollout start {service} --to VERSION`, or leave it out of launch.way_back"
        )
    versions = document["services"][service]["versions"]
    model = next(
        (each.get("model") or each["name"] for each in versions if each["name"] == previous), previous
    )
    if model not in evidence.served:
        return (
            Verdict.FAIL,
            f"{service}: {previous} is model {model}, which is not served; `tidegate up --model {model}`",
        )
    if evidence.pinned is not None and model not in evidence.pinned:
        return Verdict.FAIL, (
            f"{service}: the weights of {previous} ({model}) are not pinned and may be gone when they are needed; "
            f"`tidegate pool pin`"
        )
    return (
        Verdict.PASS,
        f"{service}: {previous} ({model}) is served, {found['next']} has {found['percent']:g} %",
    )


def _rehearsal(
    service: str, history: Sequence[Revision], within_s: float, now_unix_s: float
) -> tuple[Verdict, str]:
    number, at_unix_s = last_rollback(service, history)
    rehearse = f"`tidegate rollout rollback {service}` rehearses it, `promote` brings the new version back"
    if number == 0:
        return Verdict.FAIL, f"{service}: no rollback in {len(history)} revisions; {rehearse}"
    age_s = now_unix_s - at_unix_s
    text = f"{service}: rolled back in revision {number}, {ago(age_s)}"
    if age_s > within_s:
        return Verdict.FAIL, f"{text}, longer than rehearsed_within_h = {within_s / 3600:g}; {rehearse}"
    return Verdict.PASS, text


def last_rollback(service: str, history: Sequence[Revision]) -> tuple[int, float]:
    """(revision, when) of the newest step in which the new version lost all its calls; (0, 0.0): none.

    What it was called in the history does not count, only what it did. `history`: newest first.
    """
    found = [(revision, rollout.status(rollout.read(revision.text), service)) for revision in history]
    for (revision, after), (_, before) in pairwise(found):
        is_same = after["next"] is not None and after["next"] == before["next"]
        if is_same and before["percent"] > 0 and after["percent"] == 0:
            return revision.number, revision.made_unix_s
    return 0, 0.0
