"""The simulation of the pool bench, as far as it needs no process."""

import pytest

from benchmarks.pool import tide_peaks, usable_share


@pytest.mark.parametrize("seed", [0, 1])
def test_through_hours_of_churn_each_model_can_use_what_is_free(seed):
    """Three block sizes, prefix blocks alive: nine tenths of the free bytes, at every minute."""
    assert usable_share(seed, hours=4) >= 0.9


def test_models_with_opposite_tides_have_the_whole_pool_in_turn():
    """The other's cache makes room."""
    assert min(tide_peaks(days=1)) >= 0.9
