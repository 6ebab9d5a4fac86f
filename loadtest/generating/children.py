"""Child processes by exec, and what they say, read without blocking. No asyncio, no fork of this process's state:
it works in a thread, and in Locust's patched process."""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from loadtest.generating.messages import Down, Finished, Frames, Order, Ready, Up, frame

MODULE = "loadtest.generating.process"
MAX_STDERR_BYTES = 2_000
_READ_BYTES = 1 << 18


@dataclass
class Child:
    """One generator process."""

    process: int
    popen: subprocess.Popen[bytes]
    frames: Frames = field(default_factory=Frames)
    stderr: bytes = b""
    ready: Ready | None = None
    finished: Finished | None = None
    is_gone: bool = False
    """Its pipe has ended."""

    @property
    def has_died(self) -> bool:
        return self.is_gone and self.finished is None

    def tell(self, message: Down | Order) -> None:
        """A child that is gone hears nothing; its pipe's end says so elsewhere."""
        with contextlib.suppress(OSError):
            assert self.popen.stdin is not None  # noqa: S101 - it was opened with a pipe
            self.popen.stdin.write(frame(message))
            self.popen.stdin.flush()

    def last_words(self) -> str:
        """How it ended and what it wrote last, for a problem's text."""
        code = self.popen.wait()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        lines = self.stderr.decode(errors="replace").strip().splitlines()
        return f"{how}: {lines[-1]}" if lines else how


class Children:
    """All of a run. Use it as a context: whatever happens, none outlives it."""

    def __init__(self, orders: list[Order]) -> None:
        self._selector = selectors.DefaultSelector()
        self.all: list[Child] = []
        for order in orders:
            popen = subprocess.Popen(
                [sys.executable, "-m", MODULE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is the parent's to handle
            )
            child = Child(order.process, popen)
            self.all.append(child)
            for pipe in (popen.stdout, popen.stderr):
                assert pipe is not None  # noqa: S101 - they were opened as pipes
                os.set_blocking(pipe.fileno(), False)
                self._selector.register(pipe, selectors.EVENT_READ, child)
            child.tell(order)

    def __enter__(self) -> Children:
        return self

    def __exit__(self, *_: object) -> None:
        self._selector.close()
        for child in self.all:
            if child.popen.poll() is None:
                child.popen.kill()
            for pipe in (child.popen.stdin, child.popen.stdout, child.popen.stderr):
                with contextlib.suppress(OSError):
                    pipe.close() if pipe else None
            child.popen.wait()

    def tell(self, message: Down) -> None:
        for child in self.all:
            child.tell(message)

    @property
    def are_gone(self) -> bool:
        return all(child.is_gone for child in self.all)

    def hear(self, timeout_s: float) -> Iterator[tuple[Child, Up]]:
        """What has come, waiting for it at most so long."""
        for key, _ in self._selector.select(timeout_s):
            child: Child = key.data
            data = os.read(key.fd, _READ_BYTES)
            if not data:
                self._selector.unregister(key.fileobj)
            if key.fileobj is child.popen.stderr:
                child.stderr = (child.stderr + data)[-MAX_STDERR_BYTES:]
                continue
            child.is_gone = not data
            for body in child.frames.feed(data):
                message: Up = msgspec.msgpack.decode(body, type=Up)
                if isinstance(message, Ready):
                    child.ready = message
                elif isinstance(message, Finished):
                    child.finished = message
                yield child, message
