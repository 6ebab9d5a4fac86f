"""What a policy file may say, and how it is refused."""

from __future__ import annotations

import pytest

from scaler.deciding.policy import ModelPolicy, Policy
from scaler.errors import PolicyInvalid


def refusal(text: str) -> str:
    with pytest.raises(PolicyInvalid) as caught:
        Policy.parse(text)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "{min_instances: 4, max_instances: 2}",
            "models.chat: min_instances = 4, must be from 0 to max_instances = 2",
        ),
        (
            "{scale_out: {utilization: 0.3}, scale_in: {utilization: 0.7}}",
            "models.chat: scale_in.utilization = 0.7, must be below scale_out.utilization = 0.3",
        ),
        ("{scale_out: {queue: 5}}", "scale_in.queue = 5, must be below scale_out.queue = 5"),
        (
            "{scale_out: {utilization: 70}}",
            "models.chat.scale_out.utilization = 70, must be above 0 and at most 1",
        ),
        ("{cooldown_out_s: -1}", "models.chat.cooldown_out_s = -1, must be from 0 to 604800"),
        (
            "{scale_out: {queue_dept: 20}}",
            "models.chat.scale_out.queue_dept = 20: no such key; did you mean queue?",
        ),
        ("{scale_out: {concurrency: .nan}}", "models.chat.scale_out.concurrency = nan, must be above 0"),
        ("{min_instances: two}", "models.chat.min_instances = 'two', must be a whole number from 0 to 1000"),
        ("{max_instances: 2, max_instances: 3}", "line 1: the key 'max_instances' stands twice"),
        ("{scale_out: {utilization: null, queue: null}}", "every threshold is off"),
        (
            "{target_utilization: 0.9}",
            "target_utilization = 0.9, must be at most scale_out.utilization = 0.7",
        ),
    ],
)
def test_a_bad_value_is_refused_with_key_value_and_range(text: str, words: str) -> None:
    """Each mistake of shared/cases/policy_bad.yaml, and those beside it."""
    assert words in refusal(f"models: {{chat: {text}}}")


@pytest.mark.parametrize(
    ("window", "words"),
    [
        ("start: 09:00, end: 10:00, zone: Asia/Shangai", "did you mean Asia/Shanghai?"),
        ("start: 09:00, end: 09:00", "the window is empty"),
        ("start: 2026-12-24T18:00, end: 2026-12-24T17:00", "is not after start"),
        ("start: nine, end: 10:00", "start 'nine' is no time of the day"),
        ("start: 09:00+05:00, end: 10:00", "has an offset; write 09:00 and name the zone"),
        ("start: 09:00, end: 10:00, days: [monday]", "reservations[0].days[0]"),
    ],
)
def test_a_reservation_that_names_no_window_is_refused(window: str, words: str) -> None:
    """Misspelt zones come with the nearest one."""
    assert words in refusal(f"models: {{chat: {{reservations: [{{{window}, min_instances: 3}}]}}}}")


def test_a_time_of_day_needs_no_quotes() -> None:
    """YAML 1.1 reads 10:00 as the number 600."""
    policy = Policy.parse("models: {chat: {reservations: [{start: 10:00, end: 12:30, min_instances: 3}]}}")
    (item,) = policy.models["chat"].reservations
    assert (item.start, item.end, item.is_recurring) == ("10:00", "12:30", True)


def test_every_mistake_is_told_at_once() -> None:
    """Two bad values in two models: both lines."""
    text = "models: {a: {cooldown_in_s: -1}, b: {max_instances: 0}}"
    with pytest.raises(PolicyInvalid) as caught:
        Policy.parse(text)
    assert len(caught.value.problems) == 2


def test_defaults_are_merged_into_each_model_key_by_key() -> None:
    """A model that sets one key of scale_out keeps the others of the defaults."""
    policy = Policy.parse(
        "defaults: {max_instances: 6, scale_out: {queue: 30, hold_s: 1}}\n"
        "models: {chat: {scale_out: {queue: 10}}, embed: }"
    )
    chat, embed = policy.models["chat"], policy.models["embed"]
    assert (chat.max_instances, chat.scale_out.queue, chat.scale_out.hold_s) == (6, 10, 1)
    assert embed.scale_out.queue == 30


def test_the_defaults_are_the_documented_rule() -> None:
    """Out at 70 % or 20, in at 30 % and 5; 60 s and 120 s."""
    policy = ModelPolicy()
    assert (policy.scale_out.utilization, policy.scale_out.queue) == (0.70, 20)
    assert (policy.scale_in.utilization, policy.scale_in.queue) == (0.30, 5)
    assert (policy.cooldown_out_s, policy.cooldown_in_s) == (60, 120)
