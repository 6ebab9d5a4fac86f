"""Leadership on one machine: whoever holds a file lock, which the kernel takes away with its process.

There is nothing to renew and nothing to run out. The folder must be a local one: locks on network file systems come
with promises of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from scaler.errors import WantedUnknown
from scaler.leading.leader import new_name

RETRY_S = 1.0


class FileLeadership:
    """See `leader.Leadership`. Files: FOLDER/leader.lock; FOLDER/leader.json says who leads and what it wants."""

    def __init__(
        self,
        folder: Path,
        *,
        say: Callable[[str], None],
        me: str | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.me = me or new_name()
        self._lock = folder / "leader.lock"
        self._word = folder / "leader.json"
        self._say = say
        self._sleep = sleep
        self._fd = -1
        self._wanted: dict[str, int] = {}
        self._said = ""

    @property
    def is_leader(self) -> bool:
        return self._fd >= 0 and self._is_still_there()

    @property
    def leader(self) -> str:
        return self.me if self.is_leader else str(self._read().get("holder") or "nobody")

    async def run(self) -> None:
        try:
            while True:
                self.turn()
                await self._sleep(RETRY_S)
        finally:
            self._release()

    def turn(self) -> None:
        if self._fd >= 0 and not self._is_still_there():
            self._release()  # the file was removed or replaced: others lock another one now
        if self._fd < 0 and self._try_lock():
            self._wanted = _counts(self._read())  # the last leader's word stands until this one has its own
            self._write()
        text = f"leadership: {self.leader} leads" + ("" if self.is_leader else f", not {self.me}")
        if text != self._said:
            self._said = text
            self._say(text)

    async def publish(self, wanted: Mapping[str, int]) -> None:
        if self.is_leader and wanted != self._wanted:
            self._wanted = dict(wanted)
            self._write()

    async def published(self) -> Mapping[str, int]:
        found = self._read()
        if not found:
            raise WantedUnknown(f"nobody has led yet in {self._lock.parent}")
        return _counts(found)

    def _try_lock(self) -> bool:
        self._lock.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        self._fd = fd
        if not self._is_still_there():
            self._release()
        return self._fd >= 0

    def _is_still_there(self) -> bool:
        held = os.fstat(self._fd)
        with contextlib.suppress(FileNotFoundError):
            named = os.stat(self._lock)
            return (held.st_dev, held.st_ino) == (named.st_dev, named.st_ino)
        return False

    def _release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write(self) -> None:
        """Whole or not at all, for whoever reads meanwhile."""
        beside = self._word.with_suffix(".new")
        beside.write_text(json.dumps({"holder": self.me, "wanted": self._wanted}))
        os.replace(beside, self._word)

    def _read(self) -> dict[str, object]:
        try:
            found = json.loads(self._word.read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}


def _counts(found: Mapping[str, object]) -> dict[str, int]:
    wanted = found.get("wanted")
    return {str(model): int(count) for model, count in wanted.items()} if isinstance(wanted, dict) else {}
