"""The state on disk: what is written is read again, and what is not ours is never overwritten."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec
import pytest

from scaler.deciding.policy import Reservation
from scaler.errors import StateUnreadable, StateUnwritable
from scaler.serving.book import Book
from scaler.serving.book_state import BookState
from scaler.serving.store import Store

NOON = 1_796_126_400.0


def full_book(keep: Store) -> Book:
    """One of everything."""
    made = Book(keep=keep.save)
    made.follow_file("models: {chat: {max_instances: 6}}", NOON, "policy.yaml")
    made.set_policy("models: {chat: {max_instances: 7}, embed: {}}", NOON + 1, who="ada", why="spring tide")
    made.pause("embed", NOON + 2, who="ada")
    made.pause(None, NOON + 2)
    made.override("chat", 5, NOON + 600, NOON + 3, why="demo")
    made.reserve("chat", Reservation(name="launch", start="09:00", end="17:00", min_instances=3), NOON + 4)
    return made


def test_what_is_saved_is_read_again(tmp_path: Path) -> None:
    """Policy, history, pauses, counts by hand, reservations; the file is its owner's alone."""
    store = Store(tmp_path / "deep" / "state")
    made = full_book(store)
    again = Book(Store(tmp_path / "deep" / "state").load())
    assert again.state == made.state
    assert (again.revision, again.policy) == (2, made.policy)
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o600
    assert os.listdir(store.path.parent) == ["state.json"]


def test_a_folder_without_a_file_is_an_empty_book(tmp_path: Path) -> None:
    """The first start."""
    assert Store(tmp_path / "none").load() == BookState()


def test_a_half_written_file_beside_it_is_not_read(tmp_path: Path) -> None:
    """A process that died between writing and renaming leaves one; the next write replaces it."""
    store = Store(tmp_path)
    made = full_book(store)
    (tmp_path / ".state.json.new").write_bytes(b'{"kind": "tid')
    assert store.load() == made.state
    store.save(made.state)
    assert os.listdir(tmp_path) == ["state.json"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is damaged"),
        (b'{"kind": "tidegate-scaler-state", "version": 1, "bo', "is damaged"),
        (b"\x80\x04\x95", "is damaged"),
        (b"[]", "is damaged"),
        (b"{}", "is something else of version 0, must be tidegate-scaler-state of version 1"),
        (
            b'{"kind": "tidegate-scaler-state", "version": 2, "new": 1}',
            "is tidegate-scaler-state of version 2",
        ),
        (b'{"kind": "tidegate-scaler-state", "version": 1, "book": {"rev": 1}}', "unknown field `rev`"),
    ],
)
def test_a_file_that_is_not_ours_is_named_and_left_alone(
    tmp_path: Path, content: bytes, problem: str
) -> None:
    """With the way out, and without a word of reset."""
    path = tmp_path / "state.json"
    path.write_bytes(content)
    with pytest.raises(StateUnreadable) as caught:
        Store(tmp_path).load()
    assert str(path) in str(caught.value)
    assert problem in str(caught.value)
    assert "move it away" in str(caught.value)
    assert path.read_bytes() == content


def test_a_folder_that_can_not_be_written_is_named_and_nothing_changes(tmp_path: Path) -> None:
    """A file stands where the folder should be."""
    (tmp_path / "state").write_text("")
    store = Store(tmp_path / "state")
    made = Book(keep=store.save)
    with pytest.raises(StateUnwritable, match=r"can't be written: .*; nothing was changed"):
        made.set_policy("models: {}", NOON)
    assert made.revision == 0


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full at the fsync."""
    store = Store(tmp_path)
    made = full_book(store)
    before = store.path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StateUnwritable, match="No space left on device"):
        made.resume(None, NOON)
    assert made.pause_of("chat") is not None
    assert store.path.read_bytes() == before


def test_the_file_reads_as_a_person_would_write_it(tmp_path: Path) -> None:
    """Indented, one line a value: it is looked at when something went wrong."""
    store = Store(tmp_path)
    full_book(store)
    text = store.path.read_text()
    assert text.count("\n") > 30
    assert msgspec.json.decode(text)["book"]["reserved"][0]["name"] == "launch"
