"""The book as a process begins with it: as it was kept, and with the policy file where that says something new."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from scaler.errors import ConfigInvalid, PolicyInvalid
from scaler.serving.book import Book
from scaler.serving.book_state import BookState
from scaler.serving.store import Store

Say = Callable[[str], None]


def open_book(
    state_dir: Path, policy_path: str, now: float, *, check_leads: Callable[[], None], say: Say
) -> Book:
    """`check_leads` raises NotLeader: what is said to a scaler that follows is not kept, so it has not been said.

    Raises StateUnreadable; and ConfigInvalid or PolicyInvalid for a bad policy file, unless a policy is in force.
    """
    store = Store(state_dir)

    def keep(state: BookState) -> None:
        check_leads()
        store.save(state)

    book = Book(store.load(), keep=keep)
    if policy_path:
        _follow(book, policy_path, now, say)
    return book


def _follow(book: Book, path: str, now: float, say: Say) -> None:
    try:
        if book.follow_file(Path(path).read_text(), now, path):
            say(f"policy revision {book.revision}, from {path}")
    except PolicyInvalid as exc:
        if not book.revision:
            raise PolicyInvalid([f"{path}: {problem}" for problem in exc.problems]) from exc
        say(f"policy revision {book.revision} stays: {path} is refused: {exc}")
    except (OSError, UnicodeDecodeError) as exc:
        if not book.revision:
            raise ConfigInvalid(f"policy_path {path} can't be read: {exc}") from exc
        say(f"policy revision {book.revision} stays: {path} can't be read: {exc}")
