"""What the tracing bench makes of its rounds."""

import pytest

from benchmarks.tracing import Pairs, Round, cpu_ratio, figure_of, throughput_ratio

OFF = Round(num_calls=1000, num_failed=0, seconds=2.0, cpu_s=1.0)


def test_ratios_are_per_call():
    """On did half the calls in the same time for 60 % of the processor time: 1.2 a call, half the throughput."""
    on = Round(num_calls=500, num_failed=1, seconds=2.0, cpu_s=0.6)

    assert cpu_ratio([(OFF, on)]) == pytest.approx(1.2)
    assert throughput_ratio([(OFF, on)]) == pytest.approx(0.5)
    assert Pairs([(OFF, on)]).num_failed == 1


def test_what_comes_out_in_one_pair_of_many_counts_whole():
    """Spans leave once a second: a median of the pairs would not see them."""
    quiet, sending = Round(1000, 0, 2.0, 1.0), Round(1000, 0, 2.0, 1.4)

    assert cpu_ratio([(OFF, quiet)] * 3 + [(OFF, sending)]) == pytest.approx(1.1)


def test_the_interval_holds_the_ratio_and_is_the_same_each_time():
    """Equal pairs leave no room."""
    pairs = Pairs([(OFF, Round(1000, 0, 2.0, cpu_s)) for cpu_s in (0.9, 1.0, 1.01, 1.02, 1.3)])
    figure = figure_of(pairs, cpu_ratio)

    assert figure.low < figure.value < figure.high
    assert figure == figure_of(pairs, cpu_ratio)
    same = figure_of(Pairs([(OFF, OFF)] * 5), cpu_ratio)
    assert (same.low, same.high) == (1.0, 1.0)
