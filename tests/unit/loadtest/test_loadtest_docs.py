"""What docs/loadtest.md says is what the code does."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.judging.expression import parse, parse_all
from loadtest.judging.lengths import needs_of
from loadtest.measuring.catalogue import markdown_table
from loadtest.planning.plan import PlanError, load_plan

ROOT = Path(__file__).parents[3]
DOCS = (ROOT / "docs" / "loadtest.md").read_text()
EXAMPLES = sorted((ROOT / "examples" / "loadtest").glob("*.yaml"))


def test_the_table_of_metrics_is_the_catalogue():
    """Print `loadtest.measuring.catalogue.markdown_table()` to renew it."""
    assert markdown_table() in DOCS


def test_the_lines_in_the_docs_can_be_read():
    """Those of the code block, but for its first, which is the form."""
    block = DOCS.split("## The verdict")[1].split("```")[1].strip().splitlines()
    for line in block[2:]:
        parse(line)


def test_the_samples_in_the_docs_are_those_that_are_asked_for():
    """The table's lines, as a plan of ten minutes would have them."""
    for p, confidence in (
        ("50", "95"),
        ("90", "95"),
        ("95", "95"),
        ("99", "95"),
        ("99", "99"),
        ("99.9", "95"),
        ("99.9", "99"),
    ):
        (need,) = needs_of(load_plan(EXAMPLES[0]), [parse(f"latency.service p{p} < 1s @{confidence}%")])
        row = next(line for line in DOCS.splitlines() if line.startswith(f"| p{p} @{confidence}%"))
        assert f"| {need.n_needed:,} | {need.n_likely:,} | {need.n_likely / 20 / 60:.1f} |" in row


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_runs_long_enough_for_what_it_asks(path):
    """An example that ends in "n too small" teaches nobody."""
    try:
        plan = load_plan(path)
    except PlanError as exc:
        pytest.skip(f"its trace is not here: {exc}")
    names = {"user": [user.name for user in plan.users], "service": [user.service for user in plan.users]}
    for need in needs_of(plan, parse_all(plan.slo, names)):
        assert need.is_enough is not False, need
