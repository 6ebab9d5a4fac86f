"""One line of the checklist."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.verdict import Verdict


@dataclass(frozen=True, slots=True)
class CheckRow:
    """`evidence`: a sentence with the numbers; of a FAIL or INVALID also the way out."""

    name: str
    verdict: Verdict
    evidence: str


def worst(verdicts: Sequence[Verdict]) -> Verdict:
    """INVALID before FAIL before PASS; of nothing INVALID."""
    for verdict in (Verdict.INVALID, Verdict.FAIL):
        if verdict in verdicts or not verdicts:
            return verdict
    return Verdict.PASS


def joined(name: str, findings: Sequence[tuple[Verdict, str]]) -> CheckRow:
    """Several findings as one row: the worst verdict, and the texts that explain it (of a PASS, all)."""
    verdict = worst([each for each, _ in findings])
    texts = [text for each, text in findings if verdict is Verdict.PASS or each is not Verdict.PASS]
    return CheckRow(name, verdict, "; ".join(texts) or "nothing to look at")


def ago(seconds: float) -> str:
    """90 -> "1.5 min ago"."""
    for unit, size in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit} ago"
    return f"{max(0.0, seconds):.0f} s ago"
