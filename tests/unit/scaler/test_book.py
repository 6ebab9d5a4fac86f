"""The book: what operators have said, what is refused and in which words, and what a decision has to follow."""

from __future__ import annotations

import pytest

from scaler.deciding.decision import Floor
from scaler.deciding.policy import Reservation
from scaler.errors import (
    AllPaused,
    NotManaged,
    OutOfRange,
    PolicyInvalid,
    ReservationOfPolicy,
    ReservationTaken,
    ReservationUnknown,
    RevisionMoved,
    StateUnwritable,
)
from scaler.serving.book import MAX_REVISIONS, Book
from scaler.serving.book_state import MAX_SAID_CHARS, BookState
from scaler.serving.watched_book import WatchedBook

NOON = 1_796_126_400.0
"""2026-12-01 12:00 UTC."""
POLICY = """
models:
  chat: {min_instances: 1, max_instances: 6}
  embed: {min_instances: 0, max_instances: 4}
"""


def book(text: str = POLICY) -> Book:
    made = Book()
    made.set_policy(text, NOON, who="ada")
    return made


def daily(name: str = "launch", start: str = "13:00", end: str = "14:00", num: int = 3) -> Reservation:
    return Reservation(name=name, start=start, end=end, min_instances=num)


# --- the policy ---


def test_without_a_policy_nothing_is_scaled() -> None:
    """Revision 0, no models, and asking for one says what to do."""
    empty = Book()
    assert (empty.revision, empty.policy.models) == (0, {})
    with pytest.raises(
        NotManaged, match="'chat' is not scaled: the policy names none; add it under `models:`"
    ):
        empty.spec("chat", NOON, 60, None)


def test_a_served_model_that_the_policy_does_not_name_is_observed_and_never_changed() -> None:
    """As if it were paused, until a policy names it; by hand it is left alone too."""
    made = Book()
    made.set_policy("models: {embed: {}}", NOON)
    watched = WatchedBook(made, ("chat", "embed"))
    assert list(watched.policy.models) == ["chat", "embed"]
    spec = watched.spec("chat", NOON, 60, None)
    assert (spec.is_paused, spec.pause_words) == (True, "observed only, the policy does not name it")
    assert not watched.spec("embed", NOON, 60, None).is_paused
    with pytest.raises(NotManaged):
        made.override("chat", 2, NOON + 1, NOON)
    made.set_policy(POLICY, NOON)
    assert not watched.spec("chat", NOON, 60, None).is_paused
    assert watched.policy.models == made.policy.models


def test_a_policy_that_is_taken_is_numbered_and_remembered() -> None:
    """Who, when and the text as it was written."""
    made = book()
    second = POLICY.replace("max_instances: 6", "max_instances: 8")
    assert made.set_policy(second, NOON + 5, who="bob", why="launch") == 2
    assert made.policy.models["chat"].max_instances == 8
    first, last = made.policy_at(1), made.policy_at(2)
    assert first is not None
    assert last is not None
    assert (first.text, first.said.who, first.said.at_unix_s) == (POLICY, "ada", NOON)
    assert (last.text, last.said.who, last.said.why) == (second, "bob", "launch")


def test_the_same_text_again_is_no_new_revision() -> None:
    """A deploy script may send it every time."""
    made = book()
    assert made.set_policy(POLICY, NOON + 5) == 1
    assert len(made.state.revisions) == 1


def test_the_oldest_revisions_are_forgotten_and_numbers_go_on() -> None:
    """20 are kept."""
    made = Book()
    for num in range(1, MAX_REVISIONS + 4):
        made.set_policy(f"models: {{chat: {{max_instances: {num}}}}}", NOON + num)
    assert made.revision == MAX_REVISIONS + 3
    assert [each.number for each in made.state.revisions] == list(range(4, MAX_REVISIONS + 4))
    assert made.policy_at(1) is None


def test_a_policy_that_somebody_has_replaced_meanwhile_is_not_overwritten() -> None:
    """Two operators start from revision 1; the second one is told."""
    made = book()
    made.set_policy("models: {chat: {}}", NOON, expected_revision=1)
    with pytest.raises(RevisionMoved, match="revision 2 is in force, not 1"):
        made.set_policy(POLICY, NOON, expected_revision=1)
    assert made.revision == 2


@pytest.mark.parametrize(
    ("chat", "problem"),
    [
        ("min_instances: 4, max_instances: 2", "min_instances = 4, must be from 0 to max_instances = 2"),
        (
            "scale_out: {utilization: 0.3}, scale_in: {utilization: 0.7}",
            "scale_in.utilization = 0.7, must be below scale_out.utilization = 0.3",
        ),
        ("scale_out: {utilization: 70}", "chat.scale_out.utilization = 70, must be above 0 and at most 1"),
        ("cooldown_out_s: -1", "chat.cooldown_out_s = -1, must be from 0 to 604800"),
        (
            'reservations: [{start: "09:00", end: "09:00", zone: Asia/Shangai, min_instances: 3}]',
            "reservations[0].zone = 'Asia/Shangai': no such time zone; did you mean Asia/Shanghai?",
        ),
        ("scale_out: {queue_dept: 20}", "chat.scale_out.queue_dept = 20: no such key; did you mean queue?"),
        (
            "scale_out: {concurrency: .nan}",
            "chat.scale_out.concurrency = nan, must be above 0 and at most 1e+06",
        ),
    ],
)
def test_a_bad_policy_is_refused_with_key_value_and_range_and_the_running_one_stays(
    chat: str, problem: str
) -> None:
    """The documents of shared/cases/policy_bad.yaml."""
    kept: list[BookState] = []
    made = Book(book().state, keep=kept.append)
    with pytest.raises(PolicyInvalid) as caught:
        made.set_policy(f"models: {{chat: {{{chat}}}}}", NOON + 1)
    assert problem in str(caught.value)
    assert (made.revision, made.policy.models["chat"].max_instances, kept) == (1, 6, [])


def test_every_problem_of_a_policy_is_told_at_once() -> None:
    """Three mistakes in two models: three lines."""
    with pytest.raises(PolicyInvalid) as caught:
        Book().set_policy("models: {a: {cooldown_in_s: -1, mim: 1}, b: {step: two}}", NOON)
    assert len(caught.value.problems) == 3


def test_a_huge_policy_is_refused_unread() -> None:
    """262,144 bytes are enough for a thousand models."""
    with pytest.raises(PolicyInvalid, match="the policy has 262145 bytes, must have at most 262144"):
        Book().set_policy("#" * 262_145, NOON)


def test_a_change_that_can_not_be_kept_has_not_happened() -> None:
    """The disk is full: the old policy, no pause, and the next change works."""

    def full(state: BookState) -> None:
        raise StateUnwritable("disk full")

    made = Book(book().state, keep=full)
    with pytest.raises(StateUnwritable):
        made.set_policy("models: {}", NOON)
    with pytest.raises(StateUnwritable):
        made.pause("chat", NOON)
    assert (made.revision, list(made.policy.models)) == (1, ["chat", "embed"])
    assert not made.spec("chat", NOON, 60, None).is_paused


# --- the policy's file ---


def test_the_file_is_taken_at_the_first_start_and_when_it_was_edited_since() -> None:
    """Not at a mere restart: then a policy that was set over the API meanwhile stays."""
    made = Book()
    assert made.follow_file("models: {chat: {max_instances: 2}}", NOON, "p.yaml")
    made.set_policy("models: {chat: {max_instances: 3}}", NOON + 1)
    restarted = Book(made.state)
    assert not restarted.follow_file("models: {chat: {max_instances: 2}}", NOON + 2, "p.yaml")
    assert restarted.policy.models["chat"].max_instances == 3
    assert restarted.follow_file("models: {chat: {max_instances: 4}}", NOON + 3, "p.yaml")
    assert (restarted.revision, restarted.policy.models["chat"].max_instances) == (3, 4)


def test_a_file_that_was_broken_meanwhile_leaves_the_policy_in_force() -> None:
    """And is looked at again at the next start."""
    made = Book()
    made.follow_file("models: {chat: {}}", NOON, "p.yaml")
    with pytest.raises(PolicyInvalid):
        made.follow_file("models: {chat: {max_instances: 0}}", NOON, "p.yaml")
    assert (made.revision, made.state.file_text) == (1, "models: {chat: {}}")


# --- pauses and counts by hand ---


def test_a_pause_holds_until_it_is_resumed() -> None:
    """Of one model; the other goes on."""
    made = book()
    made.pause("chat", NOON, who="ada", why="debugging")
    spec = made.spec("chat", NOON, 60, None)
    assert (spec.is_paused, spec.pause_words) == (True, "paused by ada: debugging")
    assert not made.spec("embed", NOON, 60, None).is_paused
    said = made.pause_of("chat")
    assert said is not None
    assert (said.who, said.why) == ("ada", "debugging")
    made.resume("chat", NOON)
    assert not made.spec("chat", NOON, 60, None).is_paused


def test_what_a_client_claims_to_be_is_bounded_and_can_not_drive_a_terminal() -> None:
    """Five pauses by a `who` of 900 kB made every status 4.5 MB, more than gRPC takes, for as long as they held."""
    made = book()
    made.pause("chat", NOON, who="w" * 900_000, why="\x1b[31mred\0\nline")
    said = made.pause_of("chat")
    assert said is not None
    assert (len(said.who), said.why) == (MAX_SAID_CHARS, " [31mred  line")


def test_a_pause_of_all_holds_for_models_of_a_later_policy_too() -> None:
    """And is ended for all alone: one model out of it would surprise who paused."""
    made = book()
    made.pause(None, NOON)
    made.set_policy(POLICY + "  late: {}\n", NOON)
    assert made.spec("late", NOON, 60, None).is_paused
    with pytest.raises(AllPaused, match="all models are paused, 'chat' can't be resumed alone"):
        made.resume("chat", NOON)
    made.override("late", 2, NOON + 600, NOON)
    made.resume(None, NOON)
    spec = made.spec("late", NOON, 60, None)
    assert (spec.is_paused, spec.override) == (False, None)


def test_a_count_by_hand_holds_until_it_expires_or_is_resumed() -> None:
    """5 for ten minutes: gone at the very second."""
    made = book()
    made.override("chat", 5, NOON + 600, NOON, who="ada", why="demo")
    override = made.spec("chat", NOON + 599, 60, None).override
    assert override is not None
    assert (override.num_instances, override.until_unix_s) == (5, NOON + 600)
    assert override.reason == "set by ada: demo"
    assert made.spec("chat", NOON + 600, 60, None).override is None
    made.resume("chat", NOON)
    assert made.spec("chat", NOON, 60, None).override is None


@pytest.mark.parametrize(
    ("num", "for_s", "problem"),
    [
        (7, 60.0, "num_instances = 7, must be from min_instances = 1 to max_instances = 6 of 'chat'"),
        (0, 60.0, "num_instances = 0, must be from min_instances = 1"),
        (2, 0.0, "duration_s = 0, must be above 0 and at most 604800"),
        (2, 604_801.0, "duration_s = 604801, must be above 0"),
        (2, float("nan"), "duration_s = nan, must be above 0"),
    ],
)
def test_a_count_by_hand_stays_within_the_policy_and_ends(num: int, for_s: float, problem: str) -> None:
    """An override is for a while; for good there is the policy."""
    with pytest.raises(OutOfRange, match=problem):
        book().override("chat", num, NOON + for_s, NOON)


def test_a_count_by_hand_follows_a_policy_that_became_narrower() -> None:
    """5 by hand, then a maximum of 4: 4."""
    made = book()
    made.override("chat", 5, NOON + 600, NOON)
    made.set_policy("models: {chat: {max_instances: 4}}", NOON)
    override = made.spec("chat", NOON, 60, None).override
    assert override is not None
    assert override.num_instances == 4


def test_what_is_not_in_the_policy_can_not_be_paused_or_scaled() -> None:
    """A misspelt name is told, with those there are."""
    made = book()
    for call in (
        lambda: made.pause("caht", NOON),
        lambda: made.resume("caht", NOON),
        lambda: made.override("caht", 1, NOON + 1, NOON),
        lambda: made.reserve("caht", daily(), NOON),
    ):
        with pytest.raises(NotManaged, match="'caht' is not scaled: the policy names chat, embed"):
            call()


# --- reservations ---


def test_reservations_of_policy_and_api_make_one_floor_beside_the_forecast() -> None:
    """2 of the policy and 3 over the API add up; the forecast stands for itself."""
    made = book(
        'models: {chat: {reservations: [{name: day, start: "08:00", end: "20:00", min_instances: 2}]}}'
    )
    made.reserve("chat", daily(), NOON)
    forecast = Floor(4, "forecast")
    spec = made.spec("chat", NOON + 3600, 60, forecast)
    assert spec.floors == (Floor(5, "reservations day 2 + launch 3 = 5"), forecast)
    assert made.spec("chat", NOON, 60, None).floors == (Floor(2, "reservation day 2"),)


def test_reservations_are_listed_by_their_next_window_and_dropped_when_over() -> None:
    """One of today, one of tomorrow; an hour after its end the first is gone for good at the next change."""
    made = book()
    once = Reservation(name="once", start="2026-12-01T13:00", end="2026-12-01T14:00", min_instances=2)
    made.reserve("embed", daily("night", "23:00", "01:00"), NOON, who="bob")
    made.reserve("chat", once, NOON, who="ada")
    listed = made.reservations(NOON)
    assert [(each.model, each.item.name) for each in listed] == [("chat", "once"), ("embed", "night")]
    assert listed[0].window.start_unix_s == NOON + 3600
    later = NOON + 3 * 3600
    assert [each.item.name for each in made.reservations(later)] == ["night"]
    made.reserve("chat", daily(), later)
    assert [each.name for each in made.state.reserved] == ["night", "launch"]


def test_the_same_reservation_twice_is_one_and_another_by_its_name_is_refused() -> None:
    """A client may repeat a call whose answer was lost."""
    made = book()
    made.reserve("chat", daily(), NOON)
    made.reserve("chat", daily(), NOON + 1)
    assert len(made.state.reserved) == 1
    with pytest.raises(ReservationTaken, match="'launch' is reserved for 'chat'; cancel it first"):
        made.reserve("embed", daily(), NOON)


def test_a_cancelled_reservation_is_gone_and_one_of_the_policy_is_not_cancelled() -> None:
    """The refusal says where it stands."""
    made = book(
        'models: {chat: {reservations: [{name: day, start: "08:00", end: "20:00", min_instances: 2}]}}'
    )
    made.reserve("chat", daily(), NOON)
    made.cancel("launch", NOON)
    assert [each.item.name for each in made.reservations(NOON)] == ["day"]
    with pytest.raises(ReservationOfPolicy, match="'day' stands in the policy of 'chat'"):
        made.cancel("day", NOON)
    with pytest.raises(ReservationUnknown, match="no reservation 'launch'; there are: none"):
        made.cancel("launch", NOON)


@pytest.mark.parametrize(
    ("item", "problem"),
    [
        (daily(num=7), "min_instances = 7, must be from 1 to max_instances = 6 of 'chat'"),
        (
            Reservation(start="2026-11-30T13:00", end="2026-11-30T14:00", min_instances=2),
            "end = 2026-11-30T14:00 UTC, must be in the future",
        ),
    ],
)
def test_a_reservation_that_can_not_hold_is_refused(item: Reservation, problem: str) -> None:
    """More than the maximum, or over already."""
    with pytest.raises(OutOfRange, match=problem):
        book().reserve("chat", item, NOON)


def test_reservations_of_a_model_that_left_the_policy_wait_for_it() -> None:
    """A policy without chat by mistake must not cost chat's reservations."""
    made = book()
    made.reserve("chat", daily(), NOON)
    made.set_policy("models: {embed: {}}", NOON)
    made.set_policy(POLICY, NOON)
    assert made.spec("chat", NOON + 3600, 60, None).floors == (Floor(3, "reservation launch 3"),)
