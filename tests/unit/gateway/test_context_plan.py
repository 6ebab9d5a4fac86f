"""Which turns stay, and how what stays is put together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.context_cache import Cache, hash_of
from gateway.context_plan import first_kept, most_relevant, newest_that_fit
from gateway.context_turns import CUT_NOTE, cut_middle, gap_notes, put_together, split, with_last_cut

TALK = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "1"},
    {"role": "user", "content": "two"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "three"},
]


def test_a_turn_is_a_question_with_its_answer() -> None:
    """Six messages: a system prompt and three turns; put together they are the same again."""
    talk = split(TALK)
    assert [len(turn) for turn in talk.turns] == [2, 2, 1]
    assert put_together(talk, range(3), {}) == TALK
    assert split([{"role": "assistant", "content": "hello"}, *TALK[1:3]]).turns[0][0]["content"] == "hello"


def test_a_note_stands_where_turns_are_missing() -> None:
    """Turns 0 and 2 of three: the gap is told in front of the last one, and roles still take turns."""
    talk = split(TALK)
    short = put_together(talk, [0, 2], gap_notes(talk, [0, 2]))
    assert [message["role"] for message in short] == ["system", "user", "assistant", "user"]
    assert short[-1]["content"] == "[2 earlier messages are left out here]\n\nthree"
    assert TALK[-1]["content"] == "three"


def test_what_is_left_out_grows_in_steps() -> None:
    """Room 100, steps of 25, turns of 10: 110 tokens drop 30, and so do 120; from 130 on it is 50."""
    kept = [first_kept([10] * count, 100) for count in (10, 11, 12, 13, 14, 15, 16)]
    assert kept == [0, 3, 3, 5, 5, 5, 8]


@given(st.lists(st.integers(1, 200), min_size=1, max_size=40), st.integers(1, 500))
def test_what_stays_fits_or_is_the_last_turn_alone(costs: list[int], room: int) -> None:
    """And nothing goes while all fits."""
    first = first_kept(costs, room)
    assert sum(costs[first:]) <= room or first == len(costs) - 1
    assert (first == 0) or sum(costs) > room
    newest = newest_that_fit(costs, room, 4)
    assert 1 <= len(costs) - newest <= 4
    assert sum(costs[newest:]) <= room or newest == len(costs) - 1


def test_the_nearest_turns_stay_as_long_as_they_fit() -> None:
    """Room 25 and 2 a gap: 0.9 at 10, 0.8 at 20 does not fit any more, 0.7 at 5 does."""
    assert most_relevant([5, 20, 10], [0.7, 0.8, 0.9], 25, 2) == [0, 2]
    assert most_relevant([5, 20, 10], [0.7, 0.8, 0.9], 3, 2) == []


def test_a_text_is_cut_in_its_middle() -> None:
    """7 of 10 characters: 4 from the front, 3 from the end."""
    assert cut_middle("0123456789", 7) == "0123" + CUT_NOTE + "789"
    assert cut_middle("0123456789", 1) == "0" + CUT_NOTE
    assert cut_middle("0123456789", 10) == "0123456789"
    cut = with_last_cut(split(TALK), 2)
    assert cut.turns[-1][0]["content"] == "t" + CUT_NOTE + "e"


def test_the_least_used_entries_go_first() -> None:
    """Two fit: a was read after b was put, so b goes for c."""
    cache: Cache[int] = Cache(2)
    cache.put(b"a", 1)
    cache.put(b"b", 2)
    assert cache.get(b"a") == 1
    cache.put(b"c", 3)
    assert (cache.get(b"a"), cache.get(b"b"), cache.get(b"c")) == (1, None, 3)


def test_texts_are_hashed_apart() -> None:
    """ "ab", "c" is not "a", "bc"; half a surrogate pair is a text too."""
    assert hash_of("ab", "c") != hash_of("a", "bc")
    assert hash_of("\ud800") == hash_of("\ud800")
