"""What a report needs of a run. `loadtest.run.RunResult` has it, and so has whatever is read back from a folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from loadtest.curve import Curve
from loadtest.measuring.steady import Window
from loadtest.records import Requests
from loadtest.verdict import Judgement


@dataclass(frozen=True, slots=True)
class ScalingChange:
    """One decision of the scaler that changed how many instances are wanted."""

    t_s: float
    """Seconds after the run's t0."""
    model: str
    before: int
    after: int
    reason: str

    @property
    def why(self) -> str:
        """The reason without the scaler's "chat 2→3: " at its front, which stands beside it."""
        head, colon, rest = self.reason.partition(": ")
        return rest if colon and head.startswith(f"{self.model} ") else self.reason


class Result(Protocol):
    """A run that has ended."""

    @property
    def name(self) -> str: ...
    @property
    def requests(self) -> Requests: ...
    @property
    def curve(self) -> Curve: ...
    @property
    def window(self) -> Window: ...
    @property
    def judgement(self) -> Judgement: ...
    @property
    def started_unix_s(self) -> float:
        """t0 on the wall clock."""

    @property
    def ended_s(self) -> float:
        """After t0, the drain included."""

    @property
    def machine(self) -> Mapping[str, str]:
        """What the run's figures hold for: processor, cores, memory, commit, versions."""

    @property
    def problems(self) -> Sequence[str]:
        """What went wrong beside the requests: a generator that died, a source that was silent."""

    @property
    def changes(self) -> Sequence[ScalingChange]:
        """Empty when the scaler was not asked."""
