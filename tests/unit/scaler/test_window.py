"""Windows over counters and gauges, by numbers."""

from __future__ import annotations

import math

import pytest

from scaler.measuring.window import Counters, Gauge, SumOfCounters


def counters(*snapshots: tuple[float, float], max_gap_s: float = 60.0) -> Counters:
    made = Counters(keep_s=60.0, max_gap_s=max_gap_s)
    for at_s, value in snapshots:
        made.add(at_s, {"busy_s": value})
    return made


def test_a_rate_is_taken_over_the_time_between_the_snapshots_and_not_over_the_tick():
    """3 s of work in ticks that came after 1.0 and 3.0 s: 0.75 a second."""
    rise = counters((100.0, 7.0), (101.0, 8.0), (104.0, 10.0)).over(15.0)
    assert rise is not None
    assert (rise.seconds, rise.per_s("busy_s")) == (4.0, 0.75)


def test_a_window_begins_at_the_latest_snapshot_that_is_old_enough():
    """Of 0, 1, 2, 3 s the last 2 s begin at 1."""
    rise = counters((0.0, 0.0), (1.0, 5.0), (2.0, 6.0), (3.0, 7.0)).over(2.0)
    assert rise is not None
    assert (rise.seconds, rise["busy_s"]) == (2.0, 2.0)


def test_a_window_shorter_than_the_tick_still_takes_two_snapshots():
    """5 s apart, a window of 1 s: the rise over those 5 s."""
    rise = counters((0.0, 0.0), (5.0, 2.0)).over(1.0)
    assert rise is not None
    assert rise.seconds == 5.0


def test_one_snapshot_is_no_rate():
    """A scaler that has just begun knows no rates."""
    assert counters((0.0, 900.0)).over(15.0) is None


def test_a_counter_that_fell_begins_a_new_window():
    """Triton restarted: 900 → 3 is neither −897 nor +3; from there on it counts again."""
    made = counters((0.0, 890.0), (1.0, 900.0))
    assert not made.add(2.0, {"busy_s": 3.0})
    assert made.over(15.0) is None
    assert made.add(3.0, {"busy_s": 4.0})
    rise = made.over(15.0)
    assert rise is not None
    assert rise["busy_s"] == 1.0


def test_a_counter_that_is_gone_begins_a_new_window():
    """A reloaded model has no batches of 8 yet."""
    made = Counters(keep_s=60.0, max_gap_s=60.0)
    made.add(0.0, {"of 8": 5.0})
    assert not made.add(1.0, {})


def test_snapshots_before_an_outage_are_not_compared_with_those_after():
    """10 min away: the mean over that time says nothing about now."""
    made = counters((0.0, 0.0), (1.0, 1.0), max_gap_s=30.0)
    assert made.add(601.0, {"busy_s": 2.0})
    assert made.over(15.0) is None


def test_the_same_moment_twice_is_one_snapshot():
    """No division by no time."""
    made = counters((0.0, 0.0), (0.0, 1.0))
    assert made.over(15.0) is None


def test_a_ratio_over_nothing_is_nan_and_not_zero():
    """No request left the queue, so there is no mean time in it."""
    made = Counters(keep_s=60.0, max_gap_s=60.0)
    made.add(0.0, {"queue_s": 1.0, "left": 4.0})
    made.add(1.0, {"queue_s": 1.0, "left": 4.0})
    rise = made.over(15.0)
    assert rise is not None
    assert math.isnan(rise.ratio("queue_s", "left"))
    assert made.still_since_s("left") == 0.0


def test_old_snapshots_are_let_go_but_the_window_keeps_its_whole_length():
    """Kept 60 s: a thousand ticks later the window still spans them."""
    made = counters(*((float(tick), float(tick)) for tick in range(1000)))
    rise = made.over(60.0)
    assert rise is not None
    assert rise.seconds == 60.0
    assert len(made._snapshots) <= 62


def test_a_gauge_weighs_its_samples_by_time():
    """0 for 1 s, then 30 for 3 s: 22.5."""
    gauge = Gauge(keep_s=60.0)
    for at_s, value in [(0.0, 0.0), (1.0, 0.0), (4.0, 30.0)]:
        gauge.add(at_s, value)
    assert gauge.mean(5.0) == pytest.approx(22.5)
    assert gauge.highest(5.0) == 30.0


def test_a_gauge_with_one_sample_shows_it():
    """A source that has come back is used at once."""
    gauge = Gauge(keep_s=60.0)
    assert gauge.mean(5.0) is None
    gauge.add(0.0, 7.0)
    assert gauge.mean(5.0) == 7.0


def test_a_sum_goes_on_when_its_parts_come_go_and_begin_again():
    """chat-0 goes, chat-1 comes with 3 landed, then begins at 0 again with a new board and lands 2."""
    landed = SumOfCounters[str]()
    assert landed.update({"chat-0": 500.0}) == 0.0
    assert landed.update({"chat-0": 510.0, "chat-1": 3.0}) == 13.0
    assert landed.update({"chat-1": 5.0}) == 15.0
    assert landed.update({"chat-1": 2.0}) == 17.0
