"""Measured start-up times that outlast the process: a restarted scaler must not start a reservation too late."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from scaler.deciding.start_times import StartTimes

FILE_NAME = "start_times.json"


class KeptStartTimes(StartTimes):
    """In a file of `state_dir`. They are measurements: a file that can't be read or written costs only those."""

    def __init__(
        self,
        state_dir: Path,
        say: Callable[[str], None],
        on_start: Callable[[str, float], None] = lambda model, seconds: None,
    ) -> None:
        super().__init__()
        self._on_start = on_start
        self._path = state_dir / FILE_NAME
        self._say = say
        self._is_failing = False
        try:
            kept = msgspec.json.decode(self._path.read_bytes(), type=dict[str, list[float]])
        except FileNotFoundError:
            return
        except (OSError, msgspec.MsgspecError) as exc:
            say(f"measured start times are lost, {self._path} can't be read: {exc}")
            return
        for model, seconds in kept.items():
            for each in seconds:
                super().started(model, each)

    def started(self, model: str, seconds: float) -> None:
        super().started(model, seconds)
        self._on_start(model, seconds)
        aside = self._path.with_name(f".{FILE_NAME}.new")
        try:
            aside.write_bytes(msgspec.json.encode({name: list(each) for name, each in self._seconds.items()}))
            aside.replace(self._path)
            self._is_failing = False
        except OSError as exc:
            if not self._is_failing:
                self._say(f"measured start times will not outlast this process: {exc}")
            self._is_failing = True
