"""Server-sent events from bytes as they come: the data of each whole event."""

from __future__ import annotations

from collections.abc import Iterator


class Events:
    """Feed it what was read; an event may be cut anywhere. Comments and fields other than `data` are dropped."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()
