"""What operators have said, as values: the book decides over them, the store keeps them on disk."""

from __future__ import annotations

import msgspec

MAX_SAID_CHARS = 500


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """Who said something, when, and why. `who` is what the client claims; it is told, not trusted."""

    at_unix_s: float
    who: str = ""
    why: str = ""

    def in_words(self) -> str:
        """ "ada: demo"."""
        by = self.who or "an operator"
        return f"{by}: {self.why}" if self.why else by


def said_by(now: float, who: str, why: str) -> Said:
    """What clients claim, bounded and without control characters: it is kept, and shown with every status."""
    return Said(at_unix_s=now, who=_shown(who), why=_shown(why))


def _shown(text: str) -> str:
    text = "".join(char if char.isprintable() else " " for char in text[: MAX_SAID_CHARS + 1])
    return text if len(text) <= MAX_SAID_CHARS else f"{text[: MAX_SAID_CHARS - 3]}..."


class Revision(msgspec.Struct, frozen=True, kw_only=True):
    """A policy that was taken, as it was written."""

    number: int
    text: str
    said: Said


class ScaledTo(msgspec.Struct, frozen=True, kw_only=True):
    num_instances: int
    until_unix_s: float
    said: Said


class Reserved(msgspec.Struct, frozen=True, kw_only=True):
    """A reservation that came over the API; those of the policy stand in the policy."""

    model: str
    name: str
    start: str
    end: str
    zone: str
    days: tuple[str, ...]
    min_instances: int
    said: Said


class BookState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole book. Values are replaced, never changed."""

    revisions: tuple[Revision, ...] = ()
    """The newest last; it is the one in force."""
    file_text: str = ""
    """The policy file as last read: at a restart it counts only where somebody has edited it since."""
    all_paused: Said | None = None
    paused: dict[str, Said] = {}
    scaled_to: dict[str, ScaledTo] = {}
    reserved: tuple[Reserved, ...] = ()
