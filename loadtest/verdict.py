"""The three ends of a run. Empty or doubtful data is INVALID; it never passes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    """The value is the word in reports; `exit_code` what a shell sees."""

    PASS = "PASS"  # noqa: S105 - a verdict, no password
    FAIL = "FAIL"
    INVALID = "INVALID"

    @property
    def exit_code(self) -> int:
        return {Verdict.PASS: 0, Verdict.FAIL: 1, Verdict.INVALID: 2}[self]


@dataclass(frozen=True, slots=True)
class Row:
    """One judged expression. What could not be measured is None, never 0."""

    expression: str
    """As the plan has it, or the built-in check's own words (`steady state`, `dispatch on time`)."""
    value: float | None
    """In `unit`."""
    limit: float | None
    unit: str
    low: float | None
    """The interval's ends at the row's confidence, None where n is too small for one."""
    high: float | None
    n: int
    n_needed: int | None
    """How many samples the percentile needs at its confidence; None where the question does not arise."""
    verdict: Verdict
    why: str
    """A sentence with the numbers."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """All rows; INVALID before FAIL before PASS, and no rows at all is INVALID."""

    rows: tuple[Row, ...]

    @property
    def verdict(self) -> Verdict:
        verdicts = {row.verdict for row in self.rows}
        if not verdicts or Verdict.INVALID in verdicts:
            return Verdict.INVALID
        return Verdict.FAIL if Verdict.FAIL in verdicts else Verdict.PASS
