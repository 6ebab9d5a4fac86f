"""Which workers count as hung."""

from python_backend.node.instances import WorkerId
from python_backend.node.watch import MAX_STEP_S, HangWatch, Pulse

WORKER, OTHER = WorkerId(1), WorkerId(2)


def silent_for(
    watch: HangWatch, seconds: int, start: float = 0.0, *, has_work: bool = True
) -> list[WorkerId]:
    """Looks once a second at a worker whose beat stands still; what the last look says."""
    hung = []
    for second in range(seconds + 1):
        hung = watch.look([Pulse(WORKER, 7, has_work)], start + second)
    return hung


def test_a_worker_that_stands_still_with_work_hangs_after_the_time_out():
    """Not a look earlier, and again at every later one until it is gone."""
    watch = HangWatch(30.0)
    assert silent_for(watch, 29) == []
    assert watch.look([Pulse(WORKER, 7, True)], 30.0) == [WORKER]
    assert watch.look([Pulse(WORKER, 7, True)], 31.0) == [WORKER]


def test_one_beat_in_time_is_enough():
    """A step of 29 seconds is slow, not hung."""
    watch = HangWatch(30.0)
    silent_for(watch, 29)
    assert watch.look([Pulse(WORKER, 8, True)], 30.0) == []
    assert watch.look([Pulse(WORKER, 8, True)], 31.0) == []


def test_without_work_nobody_hangs():
    """And the silence before the work came does not count."""
    watch = HangWatch(30.0)
    assert silent_for(watch, 100, has_work=False) == []
    assert silent_for(watch, 29, 101.0) == []


def test_time_in_which_the_node_itself_was_stopped_does_not_count():
    """The first look after it comes before the workers had a chance to beat."""
    watch = HangWatch(30.0)
    watch.look([Pulse(WORKER, 7, True)], 0.0)
    assert watch.look([Pulse(WORKER, 7, True)], 3600.0) == []
    assert watch.look([Pulse(WORKER, 7, True)], 3600.0 + MAX_STEP_S) == []


def test_the_next_worker_of_the_instance_starts_afresh():
    """Its words on the board may be the same."""
    watch = HangWatch(30.0)
    assert silent_for(watch, 30) == [WORKER]
    assert watch.look([Pulse(OTHER, 7, True)], 31.0) == []


def test_one_that_hangs_does_not_accuse_its_sibling():
    """Each by its own beat."""
    watch = HangWatch(2.0)
    for second in range(4):
        hung = watch.look([Pulse(WORKER, 7, True), Pulse(OTHER, second, True)], float(second))
    assert hung == [WORKER]
