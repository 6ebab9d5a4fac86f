"""How many samples a percentile needs, and whether intervals keep what they promise."""

from __future__ import annotations

import numpy as np
import pytest

from loadtest.measuring.quantiles import SampleQuantiles
from loadtest.measuring.sample_sizes import interval_ranks, is_refuted, n_effective, n_needed
from loadtest.measuring.samples import Samples


def samples_of(values: np.ndarray) -> Samples:
    return Samples(values, np.zeros(len(values), dtype=bool), np.arange(len(values), dtype=float))


@pytest.mark.parametrize(
    ("p", "confidence", "needed"),
    [
        (0.90, 0.99, [44, 64, 81, 127, 197, 325, 681]),
        (0.99, 0.95, [299, 473, 628, 1049, 1693, 2902, 6323]),
        (0.99, 0.99, [459, 662, 838, 1307, 2010, 3304, 6898]),
        (0.999, 0.95, [2995, 4742, 6294, 10511, 16959, 29058, 63281]),
        (0.999, 0.99, [4603, 6636, 8403, 13105, 20140, 33097, 69058]),
    ],
)
def test_the_samples_needed_are_those_of_mlperfs_early_stopping(p, confidence, needed):
    """Its own table, for 0, 1, 2, 5, 10, 20 and 50 requests beyond the limit; 838 is also in inference#1788."""
    assert [n_needed(p, confidence, over) for over in (0, 1, 2, 5, 10, 20, 50)] == needed


def test_the_interval_of_a_deep_percentile_ends_at_the_maximum_and_then_nowhere():
    """p99.9 at 95 %: ranks 9,983 to 9,997 of 10,000; the maximum of 5,000; no upper bound of 2,000."""
    assert interval_ranks(10_000, 0.999, 0.95, 10_000) == (9983, 9997)
    assert interval_ranks(5_000, 0.999, 0.95, 5_000)[1] == 5_000
    assert interval_ranks(2_000, 0.999, 0.95, 2_000)[1] is None


def test_too_few_samples_give_no_number():
    """298 samples say nothing of p99 at 95 %, 299 do."""
    values = np.random.default_rng(1).exponential(1.0, 299)
    few, enough = (
        SampleQuantiles(samples_of(values[:298])).at(0.99),
        SampleQuantiles(samples_of(values)).at(0.99),
    )
    assert few.value is None
    assert few.n_needed == 299
    assert enough.value is not None


@pytest.mark.parametrize(("p", "n"), [(0.5, 100), (0.9, 300), (0.99, 1000)])
def test_intervals_hold_the_true_percentile_as_often_as_they_say(p, n):
    """2,000 simulated runs of exponential latencies: at least 95 % of them, less two standard errors."""
    rng, truth, held = np.random.default_rng(7), -np.log(1 - p), 0
    for _ in range(2000):
        found = SampleQuantiles(samples_of(rng.exponential(1.0, n))).at(p)
        held += (found.low or 0) <= truth <= (found.high or np.inf)
    assert held / 2000 >= 0.94


def test_a_stall_is_one_event_however_many_requests_it_hits():
    """50 slow ones in a row of 1,000 count for far less than 50 that come alone."""
    together, alone = np.zeros(1000, dtype=bool), np.zeros(1000, dtype=bool)
    together[400:450] = True
    alone[::20] = True
    assert n_effective(together) < 60
    assert n_effective(alone) == 1000


def test_independent_samples_are_hardly_ever_taken_for_dependent_ones():
    """Chance correlation is not held against a run: the mean of n_eff / n stays above 0.98."""
    rng = np.random.default_rng(3)
    shares = [n_effective(rng.random(1000) > 0.9) / 1000 for _ in range(300)]
    assert np.mean(shares) > 0.98


def test_bursts_widen_the_interval():
    """The same values, with the slow ones in a row and mixed."""
    rng = np.random.default_rng(5)
    values = rng.exponential(1.0, 5000)
    mixed, in_a_row = (
        SampleQuantiles(samples_of(values)).at(0.9),
        SampleQuantiles(samples_of(np.sort(values))).at(0.9),
    )
    assert in_a_row.value == mixed.value
    assert in_a_row.n_effective < 100 < mixed.n_effective
    assert mixed.high is not None
    assert in_a_row.high is None or in_a_row.high - (in_a_row.low or 0) > mixed.high - (mixed.low or 0)


def test_a_handful_of_requests_can_refute_what_they_can_never_prove():
    """Three of three beyond a p99 are no chance; one of three may be."""
    assert is_refuted(3, 3, 0.99, 0.99)
    assert not is_refuted(3, 1, 0.99, 0.99)


def test_ranks_of_fewer_effective_samples_stay_within_the_samples():
    """126 samples worth 122: the 122nd of 122 is the 126th, not the 127th; a run's report broke on that."""
    for n in range(20, 140):
        for effective in range(1, n + 1):
            low, high = interval_ranks(n, 0.95, 0.95, effective)
            assert low is None or 1 <= low <= n
            assert high is None or 1 <= high <= n, (n, effective)
