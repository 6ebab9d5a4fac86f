"""The two queues of the simulator."""

from __future__ import annotations

import numpy as np
import pytest

from scaler.simulation.arrival_queue import ArrivalQueue
from scaler.simulation.figures import started_within, wait_percentiles
from scaler.simulation.fluid_queue import FluidQueue
from scaler.simulation.queueing import Capacity, Queue
from scaler.simulation.trace import of_counts

TICK_S = 5.0


def _served(queue: Queue, num_ticks: int) -> None:
    for _ in range(num_ticks):
        queue.advance()


def test_the_peak_minute_needs_exactly_ten_at_seventy_percent():
    """Peak 14 a second: one instance does 2 a second, and 14.1 a second need eleven."""
    trace = of_counts("t", np.array([60.0, 840.0, 120.0]), 60.0)

    capacity = Capacity.for_peak(trace)

    assert capacity.per_s == pytest.approx(2.0)
    assert capacity.needed(14.0) == 10
    assert capacity.needed(14.1) == 11
    assert capacity.needed(0.0) == 1


def test_fluid_that_finds_room_does_not_wait():
    """4 a second before an instance that does 5 a second: 80 % busy."""
    queue = FluidQueue(np.full(4, 20.0), TICK_S, Capacity(5.0))
    queue.resize(1, 0.0)

    served = queue.advance()
    _served(queue, 3)

    assert served.busy_s == pytest.approx(4.0)
    assert served.queue == 0
    assert queue.waits().waits_s.max() == 0


def test_fluid_waits_until_what_is_before_it_has_started():
    """100 at once into 5 a second: the last one waits 20 s less the time since it came."""
    queue = FluidQueue(np.array([100.0, 0.0, 0.0, 0.0, 0.0]), TICK_S, Capacity(5.0))
    queue.resize(1, 0.0)
    _served(queue, 5)

    waits = queue.waits()

    assert wait_percentiles(waits, (1.0,)) == pytest.approx([(87.5 / 5) - 4.375])
    assert started_within(waits, 5.0) == pytest.approx(0.25)


def test_a_queue_that_runs_empty_within_a_tick_delays_nobody_after_it():
    """10 wait, 20 come evenly, room for 50: empty after 1.67 s, so who comes at 3.1 s starts at once."""
    queue = FluidQueue(np.array([60.0, 20.0]), TICK_S, Capacity(10.0))
    queue.resize(1, 0.0)
    _served(queue, 2)

    waits = queue.waits().waits_s

    assert waits[-2:].tolist() == pytest.approx([0.0, 0.0], abs=1e-9)
    assert waits[4] > 0


def test_whoever_is_never_served_waits_for_ever():
    """No instance at the end, and 10 still wait."""
    queue = FluidQueue(np.array([10.0]), TICK_S, Capacity(1.0))
    queue.advance()

    assert np.isinf(queue.waits().waits_s).all()


def test_batches_make_utilization_read_full_early():
    """Full batches do twice as much: at half of that each instance is always busy, and nobody waits."""
    queue = FluidQueue(np.full(2, 30.0), TICK_S, Capacity(10.0, batch_gain=2.0))
    queue.resize(1, 0.0)

    served = queue.advance()

    assert served.busy_s == pytest.approx(5.0)
    assert served.queue == 0


def test_requests_are_served_in_order_by_whoever_is_free_first():
    """Four at second 0, 1 s of service each, two instances: waits 0, 0, 1, 1."""
    queue = ArrivalQueue(np.zeros(4), TICK_S, Capacity(1.0))
    queue.resize(2, 0.0)

    served = queue.advance()

    assert queue.waits().waits_s.tolist() == [0, 0, 1, 1]
    assert served.busy_s == pytest.approx(4.0)
    assert served.queued_s == pytest.approx(2.0)


def test_an_added_instance_takes_from_the_queue_from_then_on():
    """10 at second 0, 5 s each, one instance; nine more at 5 s: all have started by 5 s."""
    queue = ArrivalQueue(np.zeros(10), TICK_S, Capacity(0.2))
    queue.resize(1, 0.0)
    queue.advance()
    queue.resize(10, 5.0)
    queue.advance()

    assert sorted(queue.waits().waits_s.tolist()) == [0.0] + [5.0] * 9


def test_an_instance_that_goes_finishes_what_it_has():
    """8 s of service begun at 0: two of two go at 5 s, one is idle, one is done at 8 s."""
    queue = ArrivalQueue(np.zeros(1), TICK_S, Capacity(1 / 8))
    queue.resize(2, 0.0)
    queue.advance()

    assert sorted(queue.resize(0, 5.0)) == [5.0, 8.0]


def test_a_batch_takes_what_waits_and_costs_less_than_each_alone():
    """Batches of 4 do twice what single requests do, 4 a second: one alone 0.5 s, four together 1 s."""
    capacity = Capacity(4.0, batch_gain=2.0, max_batch=4)
    queue = ArrivalQueue(np.array([0.0, 0.1, 0.2, 0.3, 0.4, 0.45]), TICK_S, capacity)
    queue.resize(1, 0.0)

    served = queue.advance()

    assert [capacity.service_s(1), capacity.service_s(4)] == pytest.approx([0.5, 1.0])
    assert queue.waits().waits_s.tolist() == pytest.approx([0.0, 0.4, 0.3, 0.2, 0.1, 1.05])
    assert served.busy_s == pytest.approx(0.5 + 1.0 + 0.5)


def test_a_gain_beyond_the_batch_is_refused():
    """Batches of 4 can't do 5 times what single requests do."""
    with pytest.raises(ValueError, match="batch_gain = 5, must be from 1 to max_batch = 4"):
        Capacity(1.0, batch_gain=5.0, max_batch=4)


@pytest.mark.parametrize("gain", [1.0, 3.0])
def test_both_queues_do_the_same_at_most(gain: float):
    """An hour of 12 a second before two instances of 5 a second: 10 a second are begun."""
    capacity = Capacity(5.0, batch_gain=gain, max_batch=8)
    arrivals_s = np.arange(0, 3600, 1 / 12)
    for queue in (
        FluidQueue(np.full(720, 60.0), TICK_S, capacity),
        ArrivalQueue(arrivals_s, TICK_S, capacity),
    ):
        queue.resize(2, 0.0)
        assert sum(queue.advance().started for _ in range(720)) == pytest.approx(36_000, rel=0.001)


def test_both_queues_agree_on_a_steady_load():
    """2 a second, three instances of 1 a second: two thirds busy, nobody waits."""
    arrivals_s = np.arange(0, 100, 0.5)
    fluid = FluidQueue(np.full(20, 10.0), TICK_S, Capacity(1.0))
    exact = ArrivalQueue(arrivals_s, TICK_S, Capacity(1.0))
    busy_s = []
    for queue in (fluid, exact):
        queue.resize(3, 0.0)
        busy_s.append(sum(queue.advance().busy_s for _ in range(20)))

    assert busy_s[0] == pytest.approx(busy_s[1], abs=2.0)
    assert fluid.waits().waits_s.max() == exact.waits().waits_s.max() == 0
