"""The gateway bench's figures from made-up samples."""

from __future__ import annotations

import pytest

from benchmarks.gateway import Samples, added, over_bare


def side(unary_ms: list[float], chunk_ms: list[float]) -> Samples:
    """A round for each number, of three equal samples."""
    rounds = [[[value / 1000] * 3 for value in values] for values in (unary_ms, chunk_ms)]
    return Samples(*rounds, unary_cpu_s=[0.001], chunk_cpu_s=[0.0005])


def test_what_is_added_is_the_median_of_the_rounds_differences() -> None:
    """Direct 1, 1, 5 ms and through 2, 3, 7 ms: 1, 2 and 2 are added, so 2."""
    figures = added(side([1, 1, 5], [1, 1, 1]), side([2, 3, 7], [1.5, 1.5, 1.5]))
    assert figures["unary_added_ms"].value == pytest.approx(2.0)
    assert (figures["unary_added_ms"].low, figures["unary_added_ms"].high) == pytest.approx((1.0, 2.0))
    assert figures["unary_p99_added_ms"].value == pytest.approx(2.0)
    assert figures["chunk_added_ms"].value == pytest.approx(0.5)
    assert figures["unary_cpu_ms"].value == pytest.approx(1.0)


def test_rounds_in_which_the_bare_one_added_nothing_make_no_ratio() -> None:
    """Ours adds 3 ms, the bare one 2 and -1: 1.5, from the first round. No round: no figure."""
    samples = {
        "direct": side([1, 2], [1, 1]),
        "bare": side([3, 1], [1, 1]),
        "gateway": side([4, 5], [2, 2]),
    }
    figures = over_bare(samples)
    assert figures["unary_over_bare"].value == pytest.approx(1.5)
    assert "chunk_over_bare" not in figures
