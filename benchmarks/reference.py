"""The other side of the comparisons, as its parent sees it: a process that is idle between commands, so that both
sides of a bench can take turns on the same cores."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


class Reference:
    """The parent's side. Use as a context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> Reference:
        self._child = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.reference_child", str(self._folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            # Its threads must sleep, not spin, while the other side runs.
            env=os.environ | {"OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"},
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._child.terminate()
        self._child.wait()

    def ask(self, command: str, **values: Any) -> dict[str, Any]:
        """Raises RuntimeError when the child has died."""
        if self._child.stdin is None or self._child.stdout is None:
            raise RuntimeError("the reference was not started")
        self._child.stdin.write(json.dumps({"command": command, **values}) + "\n")
        self._child.stdin.flush()
        line = self._child.stdout.readline()
        if not line:
            raise RuntimeError(f"the reference process ended during {command!r}: {self._child.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer
