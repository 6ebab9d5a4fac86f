"""The book on disk: one JSON file, replaced whole and forced to the disk before a change counts.

A `kill -9`, a full disk or a power cut at any moment leaves the old file or the new one. A file that is not ours is
never overwritten: what operators have reserved would be gone without a word.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from scaler.errors import StateUnreadable, StateUnwritable
from scaler.serving.book_state import BookState

FILE_NAME = "state.json"
KIND = "tidegate-scaler-state"
VERSION = 1


class _Header(msgspec.Struct, frozen=True):
    kind: str = ""
    version: int = 0


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kind: str
    version: int
    book: BookState


class Store:
    """One folder's state file. One process at a time writes it: the leader."""

    def __init__(self, state_dir: Path) -> None:
        self.path = state_dir / FILE_NAME

    def load(self) -> BookState:
        """An empty book where there is no file yet. Raises StateUnreadable."""
        try:
            raw = self.path.read_bytes()
        except FileNotFoundError:
            return BookState()
        except OSError as exc:
            raise StateUnreadable(f"{self.path} can't be read: {exc.strerror}") from exc
        try:
            header = msgspec.json.decode(raw, type=_Header)
            if (header.kind, header.version) != (KIND, VERSION):
                raise StateUnreadable(
                    f"{self.path} is {header.kind or 'something else'} of version {header.version}, must be {KIND} "
                    f"of version {VERSION}; {self._way_out}"
                )
            return msgspec.json.decode(raw, type=_Document).book
        except msgspec.MsgspecError as exc:
            raise StateUnreadable(f"{self.path} is damaged: {exc}; {self._way_out}") from exc

    def save(self, state: BookState) -> None:
        """On the disk when it returns. Raises StateUnwritable; the file is the old one then."""
        text = msgspec.json.format(msgspec.json.encode(_Document(KIND, VERSION, state)))
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._replace(text)
        except OSError as exc:
            raise StateUnwritable(
                f"{self.path} can't be written: {exc.strerror}; nothing was changed, make room or give the scaler "
                "another state_dir"
            ) from exc

    def _replace(self, text: bytes) -> None:
        aside = self.path.with_name(f".{self.path.name}.new")
        with aside.open("wb") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(self.path)
        # Without this the rename itself may be lost with the power.
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    @property
    def _way_out(self) -> str:
        return (
            "move it away to begin with an empty book (the policy, pauses and reservations in it are lost), or "
            "give the scaler another state_dir"
        )
