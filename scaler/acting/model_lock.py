"""One writer per model: Triton runs concurrent loads of a model in any order, so the last one sent may lose.

A file lock in RUN_DIR/locks/MODEL.lock, which the kernel drops with its holder. The file's content is the
highest instance number ever given, so that ids are never reused while the run directory lives.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from pathlib import Path
from types import TracebackType

from scaler.errors import Busy

POLL_S = 0.02


class ModelLock:
    """`async with ModelLock(...) as lock`. Raises Busy when another holder keeps it beyond `timeout_s`."""

    def __init__(self, run_dir: Path, model: str, timeout_s: float) -> None:
        self._path = run_dir / "locks" / f"{model}.lock"
        self._model = model
        self._timeout_s = timeout_s
        self._fd = -1

    async def __aenter__(self) -> ModelLock:
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            await self._acquire(fd)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        return self

    async def _acquire(self, fd: int) -> None:
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise Busy(
                        f"another update of {self._model!r} still runs after {self._timeout_s:g} s; "
                        "try again when it is done"
                    ) from None
            await asyncio.sleep(POLL_S)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)

    @property
    def highest_id(self) -> int:
        """-1: none given yet, or unreadable."""
        text = os.pread(self._fd, 32, 0).strip()
        return int(text) if text.isdigit() else -1

    def remember(self, highest_id: int) -> None:
        if highest_id > self.highest_id:
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, str(highest_id).encode(), 0)
