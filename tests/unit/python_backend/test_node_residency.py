"""Which weights stay and which go: least recently used first, never one that is pinned or in use."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backend.node.errors import WeightsHeld, WeightsTooLarge, WeightsUnknown
from python_backend.node.residency import Residency


def three_sets() -> Residency:
    """a (oldest), b, c of 10 bytes each in a budget of 35."""
    residency = Residency(35)
    for now, name in enumerate("abc"):
        residency.add(Path(f"/m/{name}"), "fp32", 10, float(now))
    return residency


def test_what_was_used_longest_ago_goes_first() -> None:
    """And no more than the room needs."""
    residency = three_sets()
    assert residency.victims_for(5) == []
    assert residency.victims_for(6) == ["a@fp32"]
    assert residency.victims_for(16) == ["a@fp32", "b@fp32"]
    assert len(residency.all()) == 3, "deciding changes nothing"


def test_use_makes_a_set_young_again() -> None:
    """Binding counts, and so does the end of it."""
    residency = three_sets()
    residency.bind("a@fp32", "chat", 10.0)
    residency.bind("b@fp32", "embed", 11.0)
    residency.unbind("embed", 12.0)
    assert residency.victims_for(6) == ["c@fp32"]
    residency.unbind("chat", 13.0)
    assert residency.victims_for(16) == ["c@fp32", "b@fp32"]


def test_pinned_and_bound_sets_never_go() -> None:
    """When they leave no room, the error has the numbers and who holds them."""
    residency = three_sets()
    residency.pin("a@fp32", True)
    residency.bind("b@fp32", "chat", 5.0)
    assert residency.victims_for(15) == ["c@fp32"]
    with pytest.raises(
        WeightsTooLarge, match=r"no room for 16 bytes.*budget is 35, 20 of it.*a@fp32 10, b@fp32"
    ):
        residency.victims_for(16)


def test_a_set_in_use_or_pinned_cannot_be_removed() -> None:
    """The text has the way out."""
    residency = three_sets()
    residency.bind("a@fp32", "chat", 5.0)
    residency.pin("b@fp32", True)
    with pytest.raises(WeightsHeld, match="in use by chat; they can go when"):
        residency.remove("a@fp32")
    with pytest.raises(WeightsHeld, match="tidegate pool pin b@fp32 --off"):
        residency.remove("b@fp32")
    with pytest.raises(WeightsUnknown, match=r"no weights 'x'.*resident: a@fp32, b@fp32, c@fp32"):
        residency.remove("x")


def test_two_folders_of_one_name_have_two_keys() -> None:
    """And each is found by its own path and precision."""
    residency = Residency(100)
    keys = [residency.add(Path(path), "bf16", 1, 0.0).key for path in ("/a/v1", "/b/v1")]
    assert keys == ["v1@bf16", "v1@bf16#2"]
    found = residency.find(Path("/b/v1"), "bf16")
    assert found is not None
    assert found.key == "v1@bf16#2"
    assert residency.find(Path("/b/v1"), "int8") is None


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("load"), st.integers(1, 60), st.booleans()),
            st.tuples(st.just("unbind"), st.integers(0, 9), st.booleans()),
            st.tuples(st.just("pin"), st.integers(0, 9), st.booleans()),
        ),
        max_size=40,
    )
)
def test_the_budget_holds_and_nothing_in_use_is_lost(events: list[tuple[str, int, bool]]) -> None:
    """Whatever comes: models bind, drop, pin; victims are the oldest of those that may go, and as few as do."""
    residency = Residency(100)
    for now, (event, number, flag) in enumerate(events):
        sets = residency.all()
        if event == "load":
            held = {each.key for each in sets if not each.may_go}
            try:
                victims = residency.victims_for(number)
            except WeightsTooLarge:
                assert sum(each.num_bytes for each in sets if each.key in held) + number > 100
                continue
            assert not held & set(victims)
            ages = [each.last_used for each in sets if each.key in victims]
            spared = [each.last_used for each in sets if each.key not in victims and each.key not in held]
            assert max(ages, default=-1.0) <= min(spared, default=float(now))
            for key in victims[:-1]:
                residency.remove(key)
            assert not victims or residency.used_bytes() + number > 100, "the last victim was needed, too"
            for key in victims[-1:]:
                residency.remove(key)
            key = residency.add(Path(f"/m/{now}"), "fp32", number, float(now)).key
            if flag:
                residency.bind(key, f"model-{now % 10}", float(now))
        elif event == "unbind":
            residency.unbind(f"model-{number}", float(now))
        elif sets:
            residency.pin(sets[number % len(sets)].key, flag)
        assert residency.used_bytes() <= 100
