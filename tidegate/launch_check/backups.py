"""Row "backups": copies of what is in force exist, can be read, and are what is in force."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from contracts.checked_yaml import load_yaml
from loadtest.planning.launch import Backups
from loadtest.verdict import Verdict
from tidegate.launch_check.row import CheckRow, ago, joined

NAME = "backups"


@dataclass(frozen=True, slots=True)
class LedgerCopy:
    """What is in a copy of the ledger, or why it could not be opened."""

    trouble: str = ""
    made_unix_s: float = 0.0
    """The file's time."""
    routes_revision: int = 0
    num_keys: int = 0


@dataclass(frozen=True, slots=True)
class InForce:
    """None: not known, `trouble` says why. "": there is none, so there is nothing to copy."""

    routes_text: str | None
    policy_text: str | None
    routes_revision: int | None
    trouble: str = ""


def check_backups(
    backups: Backups, in_force: InForce, ledger: LedgerCopy | None, now_unix_s: float
) -> CheckRow:
    """`ledger`: None when the plan names no copy."""
    findings = [
        *_text(
            "routes",
            backups.routes,
            in_force.routes_text,
            in_force.trouble,
            "tidegate rollout history --limit 1 --json",
        ),
        *_text(
            "policy", backups.policy, in_force.policy_text, in_force.trouble, "tidegate scaler policy show"
        ),
        _ledger(backups, in_force, ledger, now_unix_s),
    ]
    return joined(NAME, findings)


def _text(
    what: str, copy: Path | None, in_force: str | None, trouble: str, command: str
) -> list[tuple[Verdict, str]]:
    if in_force == "":
        return [(Verdict.PASS, f"no {what} in force, so there is nothing to copy")]
    if copy is None:
        return [
            (
                Verdict.FAIL,
                f"no copy of the {what}: `{command}` prints it; name the file in launch.backups.{what}",
            )
        ]
    if in_force is None:
        return [(Verdict.INVALID, f"what {what} is in force is not known: {trouble}")]
    try:
        copied = load_yaml(copy.read_text())
    except (OSError, ValueError) as exc:
        return [(Verdict.FAIL, f"the copy of the {what} can't be restored: {copy}: {exc}")]
    if copied != load_yaml(in_force):
        return [(Verdict.FAIL, f"{copy.name} is not the {what} that is in force; copy it anew (`{command}`)")]
    return [(Verdict.PASS, f"{copy.name} reads as the {what} in force")]


def _ledger(
    backups: Backups, in_force: InForce, copy: LedgerCopy | None, now_unix_s: float
) -> tuple[Verdict, str]:
    if copy is None or backups.ledger is None:
        return Verdict.FAIL, (
            'no copy of the ledger; `sqlite3 LEDGER ".backup COPY"` makes one while it is in use, name it in '
            "launch.backups.ledger"
        )
    if copy.trouble:
        return Verdict.FAIL, f"the copy of the ledger can't be restored: {copy.trouble}"
    age_s = now_unix_s - copy.made_unix_s
    text = (
        f"{backups.ledger.name}, {ago(age_s)}: whole, {copy.num_keys} keys, "
        f"routes to revision {copy.routes_revision}"
    )
    if in_force.routes_revision is None:
        return Verdict.INVALID, f"{text}; which revision is in force is not known: {in_force.trouble}"
    if copy.routes_revision != in_force.routes_revision:
        return Verdict.FAIL, f"{text}, and {in_force.routes_revision} is in force; copy it anew"
    if age_s > backups.max_age_h * 3600:
        return Verdict.FAIL, f"{text}, older than max_age_h = {backups.max_age_h:g}; copy it anew"
    return Verdict.PASS, text
