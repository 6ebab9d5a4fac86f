"""What the tracing bench makes of its rounds."""

from benchmarks.tracing import Pairs, Round, figure_of, interval_of


def test_ratios_are_of_the_pair_and_per_call():
    """On did half the calls in the same time for 60 % of the processor time: 1.2 a call, half the throughput."""
    off, on = Round(1000, 0, 2.0, 1.0), Round(500, 1, 2.0, 0.6)
    pairs = Pairs([(off, on)])

    assert [round(ratio, 6) for ratio in pairs.cpu_ratios()] == [1.2]
    assert pairs.throughput_ratios() == [0.5]
    assert pairs.num_failed == 1


def test_the_interval_holds_the_median_and_is_the_same_each_time():
    """A seed of its own; equal values leave no room."""
    values = [0.9, 1.0, 1.01, 1.02, 1.3]
    low, high = interval_of(values)

    assert low <= 1.01 <= high
    assert interval_of(values) == (low, high)
    assert (figure_of([1.0] * 5).low, figure_of([1.0] * 5).high) == (1.0, 1.0)
