"""Who is told how far a long step has come. The command line shows a bar; tests and scripts may stay silent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol


class Progress(Protocol):
    """Steps follow one another; a step that starts ends the one before."""

    def say(self, text: str) -> None:
        """One line of news."""

    def start(self, step: str, total_bytes: int) -> None: ...

    def advance(self, num_bytes: int) -> None: ...


class Silent:
    """Tells nobody."""

    def say(self, text: str) -> None:
        pass

    def start(self, step: str, total_bytes: int) -> None:
        pass

    def advance(self, num_bytes: int) -> None:
        pass


def read_chunks(path: Path, progress: Progress, chunk_bytes: int = 4 << 20) -> Iterator[bytes]:
    """The file's bytes; `progress` advances with them."""
    with path.open("rb") as opened:
        while chunk := opened.read(chunk_bytes):
            progress.advance(len(chunk))
            yield chunk
