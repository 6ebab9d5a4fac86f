"""Slots and attached stubs."""

from __future__ import annotations

import pytest

from python_backend.node.errors import InstanceUnknown, SlotsExhausted
from python_backend.node.instances import InstanceId, Instances, Slots, WorkerId


def instances_with(*names: str, num_slots: int = 8) -> Instances:
    instances = Instances(Slots(num_slots))
    for number, name in enumerate(names, start=1):
        instances.add(InstanceId(number), "chat", name, stub_pid=1000 + number, now_unix_ms=0)
    return instances


def test_the_lowest_free_slot_is_given_first() -> None:
    """So the board's readers find the used slots together."""
    slots = Slots(3)
    assert [slots.take() for _ in range(3)] == [0, 1, 2]
    slots.give_back(1)
    assert slots.take() == 1


def test_a_board_without_free_slots_says_so_with_the_number() -> None:
    """And the instance that was refused leaves no trace."""
    instances = instances_with("chat-0", num_slots=1)
    with pytest.raises(SlotsExhausted, match="all 1 slots"):
        instances.add(InstanceId(9), "chat", "chat-1", stub_pid=1, now_unix_ms=0)
    assert [instance.name for instance in instances.all()] == ["chat-0"]


def test_a_removed_instance_keeps_its_slot_until_it_is_given_back() -> None:
    """Its worker may still write there."""
    instances = instances_with("chat-0")
    gone = instances.remove(InstanceId(1))
    assert gone is not None
    assert instances.slots.num_free == 7
    instances.slots.give_back(gone.slot)
    assert instances.slots.num_free == 8


def test_of_two_instances_with_one_name_the_newer_is_meant() -> None:
    """Triton starts the new stub of a group before the old one is gone."""
    instances = instances_with("chat-0", "chat-0")
    assert instances.named("chat", "chat-0").id == 2


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    """A typing error is seen at once."""
    with pytest.raises(InstanceUnknown, match=r"no instance 'chat-7'.*attached: chat-0, chat-1"):
        instances_with("chat-0", "chat-1").named("chat", "chat-7")


def test_those_without_a_worker_wait_in_the_order_of_their_coming() -> None:
    """First come, first served."""
    instances = instances_with("a", "b", "c")
    second = instances.get(InstanceId(2))
    assert second is not None
    second.worker = WorkerId(5)
    assert [instance.name for instance in instances.waiting("chat")] == ["a", "c"]
    assert instances.waiting("embed") == []
