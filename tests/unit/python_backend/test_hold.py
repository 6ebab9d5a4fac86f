"""The spread-and-drain rule and the thread budget."""

import pytest

from python_backend.board import Board, SlotState, Word
from python_backend.bridge import hold
from python_backend.worker.threads import RAISE_AFTER_S, ThreadBudget


@pytest.mark.parametrize(
    ("state", "in_flight", "least_sibling", "expected"),
    [
        pytest.param(SlotState.SERVING, 3, None, True, id="alone, under its cap"),
        pytest.param(SlotState.SERVING, 8, None, False, id="alone, at its cap"),
        pytest.param(SlotState.SERVING, 3, 3, True, id="as loaded as the least-loaded sibling"),
        pytest.param(SlotState.SERVING, 3, 2, False, id="more loaded than a sibling"),
        pytest.param(SlotState.DRAINING, 1, 5, False, id="draining with one in flight"),
        pytest.param(SlotState.DRAINING, 0, None, True, id="drained"),
        pytest.param(SlotState.FREE, 0, None, True, id="the node gave the slot up"),
    ],
)
def test_execute_returns_only_when_this_instance_should_get_more(state, in_flight, least_sibling, expected):
    """Cap 8."""
    assert hold.may_return(state, in_flight, 8, least_sibling) is expected


@pytest.mark.parametrize("state", SlotState)
@pytest.mark.parametrize("in_flight", [0, 1, 7, 8, 9])
def test_who_waits_for_its_own_requests_need_not_look_at_its_siblings(state, in_flight):
    """Whatever they have, it may not return; below that it depends on them, or it may."""
    may = [hold.may_return(state, in_flight, 8, least) for least in (None, 0, 5, 100)]
    assert hold.waits_for_own(state, in_flight, 8) is not any(may)


def test_siblings_are_serving_instances_of_the_same_model_only():
    """Draining ones, free slots and other models do not count."""
    board, _ = Board.create(num_cpus=2)
    for slot, (state, model, load) in enumerate(
        [(1, 1, 0), (1, 1, 5), (1, 1, 7), (2, 1, 1), (1, 2, 0), (0, 1, 0)]
    ):
        board.set(slot, Word.STATE, state)
        board.set(slot, Word.MODEL, model)
        board.set(slot, Word.IN_FLIGHT, load)

    assert board.least_loaded_sibling(0) == 5
    assert board.least_loaded_sibling(4) is None


def test_a_cleared_slot_keeps_only_its_generation_which_counts_up():
    """What a dead instance left behind is not the next one's."""
    board, _ = Board.create(num_cpus=2)
    board.set(3, Word.IN_FLIGHT, 9)
    board.clear(3)
    board.clear(3)

    assert board.get(3, Word.IN_FLIGHT) == 0
    assert board.get(3, Word.GENERATION) == 2


def test_the_last_slot_lies_inside_the_board():
    """255 slots and a header fill the page exactly."""
    board, _ = Board.create(num_cpus=2)
    board.set(254, Word.TOKENS_OUT, 7)
    assert board.get(254, Word.TOKENS_OUT) == 7


def test_threads_fall_at_once_and_rise_late():
    """A second busy worker halves the threads at once; when it is idle they come back after a while."""
    budget = ThreadBudget(num_cpus=4, current=4)

    assert budget.update(2, 0.0) == 2
    assert budget.update(1, 0.1) == 2
    assert budget.update(2, 0.2) == 2
    assert budget.update(1, 0.3) == 2
    assert budget.update(1, 0.3 + RAISE_AFTER_S) == 4


def test_more_workers_than_cores_get_one_thread_each():
    """Never 0."""
    assert ThreadBudget(num_cpus=2).update(9, 0.0) == 1
