"""What docs/loadtest.md says is what the code does."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.judging.expression import parse
from loadtest.judging.proof import samples_likely
from loadtest.measuring.catalogue import markdown_table
from loadtest.measuring.sample_sizes import n_needed
from loadtest.planning.plan import PlanError, load_plan
from loadtest.running.forecast import forecast

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


@pytest.mark.parametrize(
    ("percentile", "confidence"),
    [("50", 95), ("90", 95), ("95", 95), ("99", 95), ("99", 99), ("99.9", 95), ("99.9", 99)],
)
def test_the_samples_in_the_docs_are_those_that_are_asked_for(percentile, confidence):
    """None beyond, half of what may be, and how long the latter takes at 20 a second."""
    p = float(percentile) / 100
    needed, likely = n_needed(p, confidence / 100), samples_likely(p, confidence / 100)
    row = next(line for line in DOCS.splitlines() if line.startswith(f"| p{percentile} @{confidence}%"))
    assert f"| {needed:,} | {likely:,} | {likely / 20 / 60:.1f} |" in row


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_runs_long_enough_for_what_it_asks(path):
    """An example that ends in "n too small" teaches nobody."""
    try:
        plan = load_plan(path)
    except PlanError as exc:
        pytest.skip(f"its trace is not here: {exc}")
    for demand in forecast(plan).demands:
        assert demand.is_met, demand
